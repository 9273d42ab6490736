//! Collects the texts of manifests: files, directories, standard input, URLs, kustomizations and Helm charts.

mod rendered;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use outrigger_images::{DownloadError, download};
use outrigger_manifest::{Diagnostic, Limits, SourceFile};

/// The most files of one command.
const FILES_MAX: usize = 1_000;
/// The most bytes in all of them.
const BYTES_MAX: usize = 64 << 20;
/// The deepest directory below one that is read.
const DEPTH_MAX: usize = 32;

/// The names that make a directory a kustomization.
const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// Where manifests come from.
#[derive(Debug, Clone, Default)]
pub struct Input {
    /// Files, directories, directories of Helm charts and URLs; `-` is standard input.
    pub places: Vec<PathBuf>,
    /// The directories of kustomizations.
    pub kustomizations: Vec<PathBuf>,
    /// Whether to read the directories in directories.
    pub is_recursive: bool,
    /// The namespace for which Helm charts are rendered.
    pub namespace: String,
}

/// Why manifests cannot be collected.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// Standard input was named twice.
    #[error("`-` (standard input) can be read only once")]
    StandardInput,
    /// A file or directory cannot be read.
    #[error("cannot read {name}")]
    Read {
        /// The file or directory.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// A URL cannot be read.
    #[error("cannot read {url}")]
    Download {
        /// The URL.
        url: String,
        /// Why.
        source: DownloadError,
    },
    /// A file is not text.
    #[error("{}", .0.message)]
    NotText(Box<Diagnostic>),
    /// A directory has no manifests.
    #[error("no .yaml, .yml or .json file in {}; -R also reads the directories in it", .0.display())]
    NoFiles(PathBuf),
    /// A kustomization was named like a directory with manifests.
    #[error("{dir} is a kustomization; use `-k {dir}`", dir = .0.display())]
    Kustomization(PathBuf),
    /// What should be a kustomization is not one.
    #[error("{} is not a directory with a kustomization.yaml", .0.display())]
    NoKustomization(PathBuf),
    /// There are too many files or bytes.
    #[error("there are more than {FILES_MAX} files or {} MiB; name fewer files", BYTES_MAX >> 20)]
    TooMuch,
    /// Directories are nested too deeply.
    #[error("{} is more than {DEPTH_MAX} directories deep; name it by itself", .0.display())]
    TooDeep(PathBuf),
    /// A program that is needed is not installed.
    #[error("{0}")]
    NoProgram(String),
    /// A program has failed.
    #[error("`{command}` failed: {said}")]
    Program {
        /// The command.
        command: String,
        /// What it said.
        said: String,
    },
}

impl Input {
    /// The texts, in the order in which they were named; files of a directory by name. It must not be called from
    /// asynchronous code.
    ///
    /// # Errors
    /// Returns what cannot be read, and why.
    pub fn read(&self) -> Result<Vec<SourceFile>, InputError> {
        if self.places.iter().filter(|place| is_stdin(place)).count() > 1 {
            return Err(InputError::StandardInput);
        }
        let mut texts = Texts { input: self, sources: Vec::new(), bytes: 0 };
        for place in &self.places {
            texts.place(place)?;
        }
        for dir in &self.kustomizations {
            texts.kustomization(dir)?;
        }
        Ok(texts.sources)
    }

    /// What was named, to show where a run comes from.
    pub fn names(&self) -> Vec<String> {
        self.places.iter().chain(&self.kustomizations).map(|place| place.display().to_string()).collect()
    }
}

/// Reads one file; `-` is standard input.
///
/// # Errors
/// Returns why it cannot be read.
pub fn read_file(file: &Path) -> Result<SourceFile, InputError> {
    // Reads one byte more than allowed, to notice that it is too much, even from an endless source.
    let limit = Limits::default().file_bytes_max as u64 + 1;
    let name = if is_stdin(file) { "<stdin>".to_owned() } else { file.display().to_string() };
    let mut bytes = Vec::new();
    let read = if is_stdin(file) {
        io::stdin().lock().take(limit).read_to_end(&mut bytes)
    } else {
        File::open(file).and_then(|file| file.take(limit).read_to_end(&mut bytes))
    };
    match read {
        Ok(_) => SourceFile::from_bytes(name, bytes).map_err(InputError::NotText),
        Err(source) => Err(InputError::Read { name, source }),
    }
}

/// Whether a path means standard input.
pub fn is_stdin(place: &Path) -> bool {
    place.as_os_str() == "-"
}

struct Texts<'i> {
    input: &'i Input,
    sources: Vec<SourceFile>,
    bytes: usize,
}

impl Texts<'_> {
    fn place(&mut self, place: &Path) -> Result<(), InputError> {
        if let Some(url) = url(place) {
            return self.url(url);
        }
        if is_stdin(place) || !place.is_dir() {
            return self.add(read_file(place)?);
        }
        let before = self.sources.len();
        self.directory(place, 0)?;
        if self.sources.len() == before {
            return Err(InputError::NoFiles(place.to_owned()));
        }
        Ok(())
    }

    fn directory(&mut self, dir: &Path, depth: usize) -> Result<(), InputError> {
        if depth > DEPTH_MAX {
            return Err(InputError::TooDeep(dir.to_owned()));
        }
        if dir.join("Chart.yaml").is_file() {
            let text = rendered::helm(dir, &self.input.namespace)?;
            return self.add_bytes(format!("{} (helm template)", dir.display()), text);
        }
        if is_kustomization(dir) {
            return Err(InputError::Kustomization(dir.to_owned()));
        }
        let failed = |source| InputError::Read { name: dir.display().to_string(), source };
        let mut entries = Vec::new();
        for entry in fs::read_dir(dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // Hidden entries are those of other programs, such as `.git` and the `..data` of mounted ConfigMaps.
            if !entry.file_name().as_encoded_bytes().starts_with(b".") {
                entries.push((entry.file_name(), entry.file_type().map_err(failed)?));
            }
        }
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, kind) in entries {
            let path = dir.join(&name);
            // Links to directories could lead in circles.
            if kind.is_dir() {
                if self.input.is_recursive {
                    self.directory(&path, depth + 1)?;
                }
            } else if is_manifest(&path) && !path.is_dir() {
                self.add(read_file(&path)?)?;
            }
        }
        Ok(())
    }

    fn url(&mut self, url: &str) -> Result<(), InputError> {
        let limit = Limits::default().file_bytes_max as u64;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|source| InputError::Read { name: url.to_owned(), source })?;
        let text = runtime.block_on(download(url, limit));
        let text = text.map_err(|source| InputError::Download { url: url.to_owned(), source })?;
        self.add_bytes(url.to_owned(), text)
    }

    fn kustomization(&mut self, dir: &Path) -> Result<(), InputError> {
        if !is_kustomization(dir) {
            return Err(InputError::NoKustomization(dir.to_owned()));
        }
        let text = rendered::kustomize(dir)?;
        self.add_bytes(format!("{} (kustomize build)", dir.display()), text)
    }

    fn add_bytes(&mut self, name: String, bytes: Vec<u8>) -> Result<(), InputError> {
        let source = SourceFile::from_bytes(name, bytes).map_err(InputError::NotText)?;
        self.add(source)
    }

    fn add(&mut self, source: SourceFile) -> Result<(), InputError> {
        self.bytes += source.text.len();
        self.sources.push(source);
        match self.bytes > BYTES_MAX || self.sources.len() > FILES_MAX {
            true => Err(InputError::TooMuch),
            false => Ok(()),
        }
    }
}

fn url(place: &Path) -> Option<&str> {
    place.to_str().filter(|text| text.starts_with("https://") || text.starts_with("http://"))
}

fn is_kustomization(dir: &Path) -> bool {
    KUSTOMIZATIONS.iter().any(|name| dir.join(name).is_file())
}

fn is_manifest(path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|ext| ["yaml", "yml", "json"].contains(&ext))
}
