//! The root file system of a container: the image's layers, and the container's own temporary layer on top.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, Uid};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, move_mount,
};

use super::copy::copy_layers;
use super::{mount_points, pieces};
use crate::fault::{Context, Fault};
use crate::sys::{clone_mount, errno_text};
use crate::userns::{IDS, NOBODY, map_ids};
use crate::{layout, rootless};

/// The maximum length of the options that mount(2) passes to the kernel.
const OPTIONS_MAX: usize = 4000;

/// Creates the container's root file system, with its own layer in `own`, without mounting it in its place.
/// The caller is in its own mount namespace. The container's directory is covered there, so that no other
/// directory must be created and removed for this. `warn` is called before a slow operation. With `ids`, the
/// files are mapped to the ids of a user namespace.
pub(crate) fn make_rootfs(
    dir: &Path,
    own: &Path,
    layers: &[PathBuf],
    ids: Option<&Ids<'_>>,
    warn: impl FnOnce(String),
) -> Result<OwnedFd, Fault> {
    let (path, is_copy) = mount_rootfs(dir, own, layers, ids, warn)?;
    let what = || format!("cannot open {}", path.display());
    // The pieces that the root may consist of are included.
    let recursive = rootless::standing().is_rootless();
    let root = clone_mount(&path, recursive).creating(what)?;
    if let (true, Some(ids)) = (is_copy, ids) {
        map_ids(root.as_fd(), ids.namespace, false).creating(what)?;
    }
    Ok(root)
}

/// The layers of an image, with an additional layer on top for missing mount points in directories of other
/// users. Without root, nothing can be created there. `targets` are paths in the container, and whether each
/// is a directory.
pub(super) fn with_mount_points(
    layers: &[PathBuf],
    own: &Path,
    targets: &[(&Path, bool)],
) -> Result<Vec<PathBuf>, Fault> {
    let mut all = layers.to_vec();
    if let ([layer], true) = (layers, rootless::standing().is_rootless())
        && layer.is_dir()
        && !pieces::are_needed(layer)
    {
        make_private(own)?;
        let points = own.join("points");
        let what = || format!("cannot make the mount points that {} does not have", layer.display());
        if mount_points::make(layer, &points, targets).creating(what)? {
            all.push(points);
        }
    }
    Ok(all)
}

/// The ids of a pod with a user namespace.
pub(crate) struct Ids<'a> {
    pub(crate) namespace: BorrowedFd<'a>,
    /// The host's id for id 0.
    pub(crate) first: u32,
}

/// Mounts the container's root file system. Returns its path, and whether it is a copy, which has the image's
/// own ids.
fn mount_rootfs(
    dir: &Path,
    own: &Path,
    layers: &[PathBuf],
    ids: Option<&Ids<'_>>,
    warn: impl FnOnce(String),
) -> Result<(PathBuf, bool), Fault> {
    let Some(top) = layers.last() else {
        return Err(Fault::image("the image has no layers: there is nothing to run"));
    };
    for layer in layers {
        if !layer.is_dir() {
            return Err(Fault::create(format!("layer {} of the image is not a directory", layer.display())));
        }
    }
    let overlay = Overlay { upper: own.join("upper"), work: own.join("work"), layers };
    make_private(own)?;
    make_private(&overlay.work)?;
    make_top(&overlay.upper, top, ids.map_or(0, |ids| ids.first))?;
    let mapped = ids.map(|ids| map_layers(layers, ids, dir, own)).transpose()?;
    let overlay = Overlay { layers: mapped.as_deref().unwrap_or(layers), ..overlay };
    let Err(refused) = overlay.mount(dir) else { return Ok((dir.to_owned(), false)) };
    if let ([layer], true) = (layers, rootless::standing().is_rootless() && is_invalid(&refused))
        && pieces::are_needed(layer)
    {
        let path = pieces::mount_pieces(layer, own)
            .creating(|| format!("cannot make a root file system of {}", layer.display()))?;
        return Ok((path, false));
    }
    let target = own.join("rootfs");
    // The message does not contain the container's own name. The same error occurs for all containers, and is
    // reported once.
    let place = own.ancestors().nth(4).unwrap_or(own);
    warn(format!(
        "overlayfs is refused in {} ({}): every container gets a copy of its whole image, which takes time and space; \
         choose a --state-dir on ext4, xfs or tmpfs, and see `outrigger doctor`",
        place.display(),
        errno_text(&refused)
    ));
    make_top(&target, top, 0)?;
    let copied = copy_layers(layers, &target);
    copied.map_err(|error| {
        Fault::create(format!("overlayfs is refused ({refused}), and copying the image failed: {error}"))
    })?;
    rustix::mount::mount_bind(&target, &target).creating(|| "cannot mount the root file system")?;
    Ok((target, true))
}

/// Maps the layers to the ids of a user namespace. A mapped mount of a layer covers the layer itself. If that
/// would cover the container's directory, it is mounted elsewhere.
fn map_layers(layers: &[PathBuf], ids: &Ids<'_>, dir: &Path, own: &Path) -> Result<Vec<PathBuf>, Fault> {
    let mut mapped = Vec::with_capacity(layers.len());
    for (number, layer) in layers.iter().enumerate() {
        let what = || {
            format!(
                "cannot mount {} with the ids of the pod's user namespace; set hostUsers: true, or use --userns host",
                layer.display()
            )
        };
        let real = fs::canonicalize(layer).creating(what)?;
        let tree = clone_mount(&real, false).creating(what)?;
        map_ids(tree.as_fd(), ids.namespace, false).creating(what)?;
        let place = if dir.starts_with(&real) { own.join(format!("layer-{number}")) } else { real };
        make_private(&place)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&tree, "", rustix::fs::CWD, &place, flags).creating(what)?;
        mapped.push(place);
    }
    Ok(mapped)
}

fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINVAL)
}

/// Creates a directory that no other user of the host can access.
fn make_private(dir: &Path) -> Result<(), Fault> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .creating(|| format!("cannot make {}", dir.display()))
}

/// Creates the directory that the container sees as `/`, with the owner and the mode of the image's root.
/// `first` is the host's id for id 0.
fn make_top(dir: &Path, image: &Path, first: u32) -> Result<(), Fault> {
    let what = || format!("cannot make {}", dir.display());
    make_private(dir)?;
    let like = fs::metadata(image).creating(what)?;
    let open = layout::open_dir_for_reading(dir).creating(what)?;
    // Without root, an unmapped id belongs to another user.
    let known = |id: &u32| !rootless::standing().is_rootless() || *id != NOBODY;
    let (uid, gid) = (Some(like.uid()).filter(known), Some(like.gid()).filter(known));
    // Ids beyond the pod's range belong to another pod.
    let shifted = |id: u32| if first == 0 || id < IDS { first + id } else { first + NOBODY };
    let (uid, gid) = (uid.map(|id| Uid::from_raw(shifted(id))), gid.map(|id| Gid::from_raw(shifted(id))));
    rustix::fs::fchown(&open, uid, gid).creating(what)?;
    rustix::fs::fchmod(&open, Mode::from_raw_mode(like.mode() & 0o7777)).creating(what)
}

struct Overlay<'a> {
    upper: PathBuf,
    work: PathBuf,
    layers: &'a [PathBuf],
}

impl Overlay<'_> {
    fn mount(&self, target: &Path) -> io::Result<()> {
        let options = self.options()?;
        if options.len() > OPTIONS_MAX {
            return self.mount_layer_by_layer(target);
        }
        let options = match rootless::standing().is_rootless() {
            // The layers' attributes are stored where an ordinary user may write them.
            true => format!("{options},userxattr"),
            false => options,
        };
        // `volatile` avoids syncing a layer that is discarded anyway. Kernels before 5.10 do not support it.
        let volatile = format!("{options},volatile");
        self.mount_with(target, &volatile).or_else(|_| self.mount_with(target, &options))
    }

    fn mount_with(&self, target: &Path, options: &str) -> io::Result<()> {
        let options = std::ffi::CString::new(options)?;
        Ok(mount("overlay", target, "overlay", MountFlags::empty(), options.as_c_str())?)
    }

    fn options(&self) -> io::Result<String> {
        let mut lower = Vec::with_capacity(self.layers.len());
        for layer in self.layers.iter().rev() {
            lower.push(escape(layer)?);
        }
        Ok(format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.join(":"),
            escape(&self.upper)?,
            escape(&self.work)?
        ))
    }

    fn mount_layer_by_layer(&self, target: &Path) -> io::Result<()> {
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        for layer in self.layers.iter().rev() {
            fsconfig_set_string(&context, "lowerdir+", layer.as_os_str().as_bytes())?;
        }
        fsconfig_set_string(&context, "upperdir", self.upper.as_os_str().as_bytes())?;
        fsconfig_set_string(&context, "workdir", self.work.as_os_str().as_bytes())?;
        if rootless::standing().is_rootless() {
            fsconfig_set_flag(&context, "userxattr")?;
        }
        fsconfig_set_flag(&context, "volatile")?;
        fsconfig_create(&context)?;
        let mounted = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        Ok(move_mount(&mounted, "", rustix::fs::CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
    }
}

/// Escapes a path for the mount options, because overlayfs splits them at colons and commas.
pub(super) fn escape(path: &Path) -> io::Result<String> {
    let path = path.to_str().ok_or_else(|| io::Error::other(format!("{} is not UTF-8", path.display())))?;
    let mut escaped = String::with_capacity(path.len());
    for c in path.chars() {
        if matches!(c, ':' | ',' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    Ok(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_layer_comes_first_and_separators_are_escaped() {
        let layers = [PathBuf::from("/l/a:b"), PathBuf::from("/l/c,d")];
        let overlay = Overlay { upper: "/c/upper".into(), work: "/c/work".into(), layers: &layers };
        assert_eq!(overlay.options().unwrap(), r"lowerdir=/l/c\,d:/l/a\:b,upperdir=/c/upper,workdir=/c/work");
    }
}
