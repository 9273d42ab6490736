//! The styles of the picture, for light and dark mode.

/// Styles and arrow heads.
pub(super) const HEAD: &str = r#"<style>
svg {
  --paper: #ffffff; --lane: #f5f7fa; --ink: #1f2937; --soft: #6b7280; --line: #9ca3af;
  --init: #b45309; --init-tint: #fef3c7; --sidecar: #0e7490; --sidecar-tint: #d5f5fa; --main: #1d4ed8; --main-tint: #e0eaff;
  --completed: #b45309; --started: #0e7490; --ready: #7c3aed; --gone: #6b7280;
  font-family: ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
@media (prefers-color-scheme: dark) {
  svg {
    --paper: #11151c; --lane: #181e28; --ink: #e5e9f0; --soft: #95a0b3; --line: #5b667a;
    --init: #f0b45a; --init-tint: #3a2a10; --sidecar: #56cfe1; --sidecar-tint: #0e3440; --main: #7aa7ff; --main-tint: #16264d;
    --completed: #f0b45a; --started: #56cfe1; --ready: #b794ff; --gone: #95a0b3;
  }
}
.paper { fill: var(--paper) } .lane { fill: var(--lane) }
.title { font-size: 19px; font-weight: 650; fill: var(--ink) }
.facts, .legend { font-size: 12px; fill: var(--soft) }
.column { font-size: 11px; fill: var(--soft); text-anchor: middle; letter-spacing: .06em }
.name { font-size: 13.5px; font-weight: 600; fill: var(--ink); text-anchor: middle }
.note { font-size: 10.5px; fill: var(--soft); text-anchor: middle }
.box { stroke-width: 1.4 } .stop { stroke-dasharray: none; fill-opacity: .55 }
.box.init { fill: var(--init-tint); stroke: var(--init) } .bar.init { fill: var(--init) }
.box.sidecar { fill: var(--sidecar-tint); stroke: var(--sidecar) } .bar.sidecar { fill: var(--sidecar) }
.box.main { fill: var(--main-tint); stroke: var(--main) } .bar.main { fill: var(--main) }
.bar { opacity: .45 }
.arrow { fill: none; stroke-width: 1.6 }
.need { font-size: 11px; text-anchor: end; paint-order: stroke; stroke: var(--paper); stroke-width: 3px; stroke-opacity: .8 }
.arrow.completed { stroke: var(--completed) } .dot.completed, .need.completed, #completed path { fill: var(--completed) }
.arrow.started { stroke: var(--started) } .dot.started, .need.started, #started path { fill: var(--started) }
.arrow.ready { stroke: var(--ready) } .dot.ready, .need.ready, #ready path { fill: var(--ready) }
.arrow.gone { stroke: var(--gone) } #gone path { fill: var(--gone) }
.arrow.launched { stroke: var(--line); stroke-dasharray: 2 3 } #launched path { fill: var(--line) }
</style>
<defs>
<marker id="completed" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="8" markerHeight="8" orient="auto" markerUnits="userSpaceOnUse"><path d="M0 0L8 4L0 8z"/></marker>
<marker id="started" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="8" markerHeight="8" orient="auto" markerUnits="userSpaceOnUse"><path d="M0 0L8 4L0 8z"/></marker>
<marker id="ready" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="8" markerHeight="8" orient="auto" markerUnits="userSpaceOnUse"><path d="M0 0L8 4L0 8z"/></marker>
<marker id="gone" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="8" markerHeight="8" orient="auto" markerUnits="userSpaceOnUse"><path d="M0 0L8 4L0 8z"/></marker>
<marker id="launched" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="8" markerHeight="8" orient="auto" markerUnits="userSpaceOnUse"><path d="M0 0L8 4L0 8z"/></marker>
</defs>
"#;
