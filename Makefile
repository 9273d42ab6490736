# The targets people and CI use.

.PHONY: deps test lint

deps: ## Debian packages the tests need
	@true

lint: ## formatting and clippy, warnings are errors
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

test: deps lint ## everything CI checks
	cargo test --workspace --locked
