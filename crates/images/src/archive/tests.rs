use super::*;

impl Skip for &[u8] {}

fn read_all(tar: &[u8]) -> io::Result<Vec<(Entry, Vec<u8>)>> {
    let mut archive = Archive::new(tar, Sizes::default());
    let mut all = Vec::new();
    while let Some(entry) = archive.next()? {
        let mut content = vec![0; entry.stored as usize];
        let mut filled = 0;
        while filled < content.len() {
            filled += archive.read(&mut content[filled..])?;
        }
        all.push((entry, content));
    }
    Ok(all)
}

fn append(tar: &mut tar::Builder<Vec<u8>>, path: &str, data: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(data.len() as u64);
    header.set_mode(0o4755);
    header.set_uid(3_000_000);
    header.set_mtime(7);
    tar.append_data(&mut header, path, data).unwrap();
}

#[test]
fn what_the_library_writes_reads_back() {
    let mut tar = tar::Builder::new(Vec::new());
    let long = format!("{}/file", "d".repeat(150));
    append(&mut tar, "a", b"one");
    append(&mut tar, &long, &[7; 1024]);
    tar.append_pax_extensions([("path", &b"from/pax"[..]), ("uid", b"5"), ("SCHILY.xattr.user.x", b"a=\n")])
        .unwrap();
    append(&mut tar, "b", b"");
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    tar.append_link(&mut header, "link", "t".repeat(200)).unwrap();
    let tar = tar.into_inner().unwrap();
    let all = read_all(&tar).unwrap();
    let paths: Vec<&[u8]> = all.iter().map(|(entry, _)| entry.path.as_slice()).collect();
    assert_eq!(paths, [b"a", long.as_bytes(), b"from/pax", b"link"]);
    assert_eq!((all[0].0.uid, all[0].0.mode, all[0].0.mtime), (3_000_000, 0o4755, 7));
    assert_eq!((all[0].1.as_slice(), all[1].1.as_slice()), (&b"one"[..], &[7; 1024][..]));
    assert_eq!((all[2].0.uid, all[2].0.records[2].1.as_slice()), (5, &b"a=\n"[..]));
    assert_eq!((all[3].0.kind, all[3].0.link.len()), (Kind::Symlink, 200));
    for cut in 1..tar.len().min(3000) {
        // The result may be complete entries, a missing end marker or an error, but never a panic.
        let _ = read_all(&tar[..cut]);
    }
}

/// A header that announces content, without that content.
fn header(flag: u8, size: u64) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::new(flag));
    header.set_size(size);
    header.set_cksum();
    header.as_bytes().to_vec()
}

#[test]
fn what_headers_claim_is_bounded_before_anything_is_read() {
    for (flag, size, says) in [
        (b'L', 1 << 40, "path has 1099511627776 bytes"),
        (b'K', 4097, "link target has 4097 bytes, more than the 4096 allowed"),
        (b'x', 2 << 20, "extensions has 2097152 bytes"),
        (b'g', 2 << 20, "extensions has 2097152 bytes"),
        (b'0', u64::MAX, "out of range"),
    ] {
        let error = read_all(&header(flag, size)).unwrap_err();
        assert!(error.to_string().contains(says), "{}: {error}", char::from(flag));
    }
    let mut tar = tar::Builder::new(Vec::new());
    tar.append_pax_extensions([("path", "p".repeat(5000).as_bytes())]).unwrap();
    append(&mut tar, "b", b"");
    let error = read_all(&tar.into_inner().unwrap()).unwrap_err();
    assert!(error.to_string().contains("path has 5000 bytes"), "{error}");
}

#[test]
fn damaged_and_foreign_archives_are_refused() {
    let mut tar = tar::Builder::new(Vec::new());
    append(&mut tar, "a", b"one");
    let good = tar.into_inner().unwrap();
    for at in [0, 105, 124, 150, 300] {
        let mut bad = good.clone();
        bad[at] ^= 0x15;
        assert!(read_all(&bad).is_err(), "byte {at}");
    }
    assert!(read_all(&[b'x'; 4096]).is_err());
    assert!(read_all(b"short").is_err());
    assert_eq!(read_all(&[0; 1024]).unwrap(), []);
    assert_eq!(read_all(b"").unwrap(), []);
}

/// A sparse file as GNU tar writes it.
fn sparse(size: u64, parts: &[(u64, u64)], stored: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNUSparse);
    header.set_size(stored.len() as u64);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.set_real_size(size);
    let octal = |field: &mut [u8], value: u64| {
        let text = format!("{value:011o}\0");
        field.copy_from_slice(text.as_bytes());
    };
    for (slot, (offset, length)) in gnu.sparse.iter_mut().zip(parts) {
        octal(&mut slot.offset, *offset);
        octal(&mut slot.numbytes, *length);
    }
    header.set_cksum();
    let mut tar = header.as_bytes().to_vec();
    tar.extend_from_slice(stored);
    tar.resize(tar.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    tar
}

#[test]
fn sparse_files_are_told_as_such_and_checked() {
    let all = read_all(&sparse(1 << 32, &[(0, 2), (1 << 30, 3), (1 << 32, 0)], b"abcde")).unwrap();
    assert_eq!((all[0].0.size, all[0].0.stored), (1 << 32, 5));
    let parts = all[0].0.sparse.as_deref().unwrap();
    assert_eq!((parts[1].offset, parts[1].length), (1 << 30, 3));
    for (size, parts, stored) in [
        (10, &[(0, 5), (4, 1)][..], &b"abcdef"[..]), // overlap
        (10, &[(8, 5)], b"abcde"),                   // beyond the end
        (10, &[(0, 5)], b"abc"),                     // more than is stored
        (10, &[(5, 1), (0, 1)], b"ab"),              // backwards
    ] {
        assert!(read_all(&sparse(size, parts, stored)).is_err(), "{parts:?}");
    }
    let mut pax = tar::Builder::new(Vec::new());
    pax.append_pax_extensions([("GNU.sparse.major", &b"1"[..])]).unwrap();
    append(&mut pax, "b", b"");
    assert!(read_all(&pax.into_inner().unwrap()).unwrap_err().to_string().contains("--format=gnu"));
}

#[test]
fn numbers_in_both_forms() {
    assert_eq!(number(b"0000644\0").unwrap(), 0o644);
    assert_eq!(number(b"  12 \0").unwrap(), 0o12);
    assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 0x01, 0x00]).unwrap(), 256);
    assert_eq!(number(&[0xff; 12]).unwrap(), 0);
    assert!(number(&[0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
    assert!(number(b"12x").is_err());
    assert!(records(b"5 a\n").is_none() && records(b"99999999999999999999 a=b\n").is_none());
    assert!(records(b"0 a=b\n").is_none() && records(b"3 a=b\n").is_none());
}
