//! Runs a real, headless browser.

use std::ffi::OsString;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The colour scheme of the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Light,
    Dark,
}

/// A browser with its own profile. Dropping it removes the profile.
pub(crate) struct Chromium {
    program: PathBuf,
    profile: tempfile::TempDir,
}

impl Chromium {
    /// Finds the browser. `None`, with a message, only if the environment says that there is none.
    pub(crate) fn find() -> Option<Chromium> {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&paths).map(|dir| dir.join("chromium")).find(|p| p.is_file());
        match found {
            Some(program) => {
                let profile =
                    tempfile::Builder::new().prefix("outrigger-browser-").tempdir().expect("a directory");
                Some(Chromium { program, profile })
            }
            None if std::env::var_os("OUTRIGGER_NO_BROWSER").is_some() => {
                eprintln!(
                    "\n!!! THE PICTURES ARE NOT CHECKED: there is no chromium here, and OUTRIGGER_NO_BROWSER is set !!!\n"
                );
                None
            }
            None => panic!(
                "chromium is not installed: install the package (make deps), or set OUTRIGGER_NO_BROWSER=1 to leave the pictures unchecked"
            ),
        }
    }

    fn run(&self, scheme: Scheme, size: (u32, u32), more: OsString, page: &Path) -> String {
        let number = match scheme {
            Scheme::Dark => 0,
            Scheme::Light => 1,
        };
        let log = self.profile.path().join("log");
        let out = Command::new(&self.program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
            ])
            // It only needs the given file, not the network.
            .args(["--disable-quic", "--no-first-run", "--disable-background-networking"])
            .args(["--disable-component-update", "--disable-sync", "--disable-extensions"])
            .arg(format!("--blink-settings=preferredColorScheme={number}"))
            .arg(format!("--window-size={},{}", size.0, size.1))
            .arg(format!("--user-data-dir={}", self.profile.path().join("profile").display()))
            .arg(more)
            .arg(format!("file://{}", page.display()))
            .env("HOME", self.profile.path())
            .stdin(Stdio::null())
            .stderr(File::create(&log).expect("a file"))
            .output()
            .expect("chromium runs");
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        assert!(out.status.success(), "{}: {said}", out.status);
        String::from_utf8(out.stdout).expect("text")
    }

    /// Takes a screenshot of a page.
    pub(crate) fn screenshot(&self, page: &Path, scheme: Scheme, size: (u32, u32), to: &Path) -> Pixels {
        let mut screenshot = OsString::from("--screenshot=");
        screenshot.push(to);
        self.run(scheme, size, screenshot, page);
        Pixels::read(to)
    }

    /// The DOM of a page after its scripts have run.
    pub(crate) fn dom(&self, page: &Path, size: (u32, u32)) -> String {
        self.run(Scheme::Light, size, "--dump-dom".into(), page)
    }
}

/// A picture, three bytes per pixel.
pub(crate) struct Pixels {
    pub(crate) width: u32,
    pub(crate) height: u32,
    rgb: Vec<[u8; 3]>,
}

impl Pixels {
    fn read(path: &Path) -> Pixels {
        let file = BufReader::new(File::open(path).expect("a screenshot"));
        let mut decoder = png::Decoder::new(file);
        decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
        let mut reader = decoder.read_info().expect("a PNG");
        let mut bytes = vec![0; reader.output_buffer_size().expect("it fits")];
        let info = reader.next_frame(&mut bytes).expect("its pixels");
        let samples = info.color_type.samples();
        assert!(samples >= 3, "colours");
        let rgb = bytes[..info.buffer_size()].chunks_exact(samples).map(|p| [p[0], p[1], p[2]]).collect();
        Pixels { width: info.width, height: info.height, rgb }
    }

    /// The number of pixels with a CSS colour.
    pub(crate) fn count(&self, color: &str) -> usize {
        let wanted = [1, 3, 5].map(|at| u8::from_str_radix(&color[at..at + 2], 16).expect("a colour"));
        self.rgb.iter().filter(|p| **p == wanted).count()
    }
}
