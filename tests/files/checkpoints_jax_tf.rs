//! Damages checkpoints that TensorFlow and Orbax have written, and checks the verdicts on them.
//!
//! By default it runs over the checkpoints in `fixtures/checkpoints`. `libraries_load_every_checkpoint_judged_valid`
//! (`--ignored`) makes new ones and damages them `TRAININGJOB_DAMAGES` times. The libraries themselves then load all
//! that was called valid or complete. `TRAININGJOB_PYTHON` is a Python that has TensorFlow, JAX and Orbax. The result
//! is printed as a table (`--nocapture`).

use checkpoint::files::{Files, Member, ReadSeek};
use checkpoint::formats::{Claim, Listing, Rules, orbax, tensorflow};
use checkpoint::found::{Depth, Judgement, Verdict};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Cursor, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testkit::room::Room;

/// The files of a folder, in memory.
#[derive(Clone)]
struct Folder {
    name: String,
    files: BTreeMap<String, Vec<u8>>,
}

struct Opened<'a> {
    members: Vec<Member>,
    files: &'a BTreeMap<String, Vec<u8>>,
}

impl Files for Opened<'_> {
    fn members(&self) -> &[Member] {
        &self.members
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadSeek + '_>> {
        let bytes = self.files.get(path).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Box::new(Cursor::new(bytes.as_slice())))
    }
}

impl Folder {
    fn read(path: &Path) -> Self {
        fn walk(root: &Path, folder: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(root, &path, files);
                } else {
                    let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                    files.insert(name, std::fs::read(&path).unwrap());
                }
            }
        }
        let mut files = BTreeMap::new();
        walk(path, path, &mut files);
        Self { name: path.file_name().unwrap().to_str().unwrap().to_owned(), files }
    }

    fn write(&self, path: &Path) {
        for (name, bytes) in &self.files {
            let path = path.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
    }

    fn listing(&self) -> Listing {
        let mut listing = Listing { name: self.name.clone(), ..Listing::default() };
        for path in self.files.keys() {
            match path.split_once('/') {
                None => listing.files.push(path.clone()),
                Some((folder, _)) if listing.folders.last().is_none_or(|last| last != folder) => {
                    listing.folders.push(folder.to_owned());
                }
                Some(_) => {}
            }
        }
        listing
    }

    /// The verdict on it. `None` if it is not even recognised.
    fn judge(&self, rules: &Rules, depth: Depth) -> Option<Judgement> {
        let claim = (rules.claim)(&self.listing()).into_iter().next()?;
        let (name, ours) = match claim {
            Claim::Folder => (self.name.clone(), None),
            Claim::Files { name, files } => (name, Some(files)),
        };
        let members = self.files.iter().filter(|(path, _)| ours.as_ref().is_none_or(|ours| ours.contains(*path)));
        let members =
            members.map(|(path, bytes)| Member { path: path.clone(), size: bytes.len() as u64, modified: 0 }).collect();
        Some(
            (rules.judge)(&name, &Opened { members, files: &self.files }, depth)
                .expect("nothing fails that is in memory"),
        )
    }
}

/// One checkpoint as it was written, and another of the same program.
struct Case {
    kind: &'static str,
    rules: &'static Rules,
    whole: Folder,
    other: Folder,
    /// The path that a library is given, relative to the folder.
    given: String,
    step: u64,
}

fn cases(root: &Path) -> Vec<Case> {
    let mut cases = Vec::new();
    let tensorflow = [
        ("tensorflow", ["ckpt-1", "ckpt-2"]),
        ("tensorflow-sharded", ["weights-10", "weights-20"]),
        ("tensorflow-saver", ["model.ckpt-10", "model.ckpt-20"]),
    ];
    for (kind, names) in tensorflow {
        let all = Folder::read(&root.join(kind));
        let of = |name: &str| {
            let files = all
                .files
                .iter()
                .filter(|(path, _)| path.starts_with(&format!("{name}.")))
                .map(|(path, bytes)| (path.clone(), bytes.clone()));
            Folder { name: "checkpoints".into(), files: files.collect() }
        };
        for (name, other, step) in [(names[0], names[1], 10), (names[1], names[0], 20)] {
            // The other's files under this one's names.
            let mut stranger = of(other);
            stranger.files =
                stranger.files.into_iter().map(|(path, bytes)| (path.replace(other, name), bytes)).collect();
            cases.push(Case {
                kind,
                rules: &tensorflow::RULES,
                whole: of(name),
                other: stranger,
                given: name.into(),
                step,
            });
        }
    }
    let orbax = [
        ("orbax-standard", ""),
        ("orbax-items", ""),
        ("orbax-zarr3", "step_"),
        ("orbax-files", "step_"),
        ("orbax-files3", "step_"),
    ];
    for (kind, prefix) in orbax {
        let of = |step: u64| Folder::read(&root.join(kind).join(format!("{prefix}{step}")));
        for (step, other) in [(10, 20), (20, 10)] {
            cases.push(Case {
                kind,
                rules: &orbax::RULES,
                whole: of(step),
                other: of(other),
                given: String::new(),
                step,
            });
        }
    }
    cases
}

/// Numbers that only the seed decides.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end.max(1) as u64) as usize
    }
}

const DAMAGES: [&str; 10] = [
    "one bit flipped",
    "cut",
    "emptied",
    "file missing",
    "file of another step",
    "zeros from somewhere on",
    "a block of zeros",
    "bytes appended",
    "old index",
    "still being written",
];

/// The folder with this damage, or nothing if there is nothing to damage.
fn damage(case: &Case, how: &str, random: &mut Random) -> Option<Folder> {
    let mut folder = case.whole.clone();
    let paths: Vec<String> = folder.files.keys().cloned().collect();
    // By size, so that it is not always one of the many small ones. Every other time by file.
    let total: usize = folder.files.values().map(Vec::len).sum();
    let mut path = paths[random.below(paths.len())].clone();
    if random.below(2) == 0 {
        let mut at = random.below(total);
        for (name, bytes) in &folder.files {
            if at < bytes.len() {
                path.clone_from(name);
                break;
            }
            at -= bytes.len();
        }
    }
    let bytes = folder.files.get_mut(&path)?;
    let length = bytes.len();
    match how {
        "one bit flipped" => *bytes.get_mut(random.below(length))? ^= 1 << random.below(8),
        "cut" => bytes.truncate(random.below(length)),
        "emptied" => bytes.clear(),
        "file missing" => drop(folder.files.remove(&path)),
        "file of another step" => {
            // Orbax gives its data files random names. The file in the same place of the other's folder is then taken.
            let beside = |files: &BTreeMap<String, Vec<u8>>, path: &str| {
                let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned();
                files
                    .keys()
                    .filter(|name| name.rsplit_once('/').map_or("", |(parent, _)| parent) == parent)
                    .cloned()
                    .collect::<Vec<_>>()
            };
            let theirs = match case.other.files.get(&path) {
                Some(bytes) => bytes.clone(),
                None => {
                    let at = beside(&case.whole.files, &path).iter().position(|name| *name == path)?;
                    case.other.files[beside(&case.other.files, &path).get(at)?].clone()
                }
            };
            *bytes = theirs;
        }
        "zeros from somewhere on" => bytes[random.below(length)..].fill(0),
        "a block of zeros" => {
            let from = random.below(length) / 16 * 16;
            bytes[from..length.min(from + 64)].fill(0);
        }
        "bytes appended" => bytes.extend((0..=random.below(40)).map(|at| at as u8)),
        "old index" => {
            let index = |path: &str| {
                [".index", "manifest.ocdbt", "_METADATA", ".zarray", "zarr.json"].iter().any(|end| path.ends_with(end))
            };
            let indices: Vec<&String> =
                paths.iter().filter(|path| index(path) && case.other.files.contains_key(*path)).collect();
            let path = indices.get(random.below(indices.len()))?.as_str();
            folder.files.insert(path.to_owned(), case.other.files[path].clone());
        }
        "still being written" => {
            // Some of its files, the last of them in part. The last file of all is never there.
            let last = |path: &str| {
                path.ends_with(".index") || path.ends_with("commit_success.txt") || path.ends_with("_METADATA")
            };
            folder.files.retain(|path, _| !last(path));
            let keep = random.below(folder.files.len()) + 1;
            let kept: Vec<String> = folder.files.keys().take(keep).cloned().collect();
            folder.files.retain(|path, _| kept.contains(path));
            if case.given.is_empty() {
                folder.name += ".orbax-checkpoint-tmp";
            }
        }
        _ => unreachable!(),
    }
    (folder.files != case.whole.files || folder.name != case.whole.name).then_some(folder)
}

#[derive(Default)]
struct Counts(BTreeMap<(usize, &'static str), BTreeMap<String, usize>>);

impl Counts {
    fn add(&mut self, damage: &str, kind: &'static str, what: &str) {
        let at = DAMAGES.iter().position(|name| *name == damage).unwrap();
        *self.0.entry((at, kind)).or_default().entry(what.to_owned()).or_default() += 1;
    }

    fn table(&self, columns: &[&str]) -> String {
        let mut text = format!(
            "| damage | format | files | {} |\n|---|---|---|{}\n",
            columns.join(" | "),
            "---|".repeat(columns.len())
        );
        let mut sums = vec![0; columns.len() + 1];
        for ((damage, kind), counts) in &self.0 {
            let row: Vec<usize> = columns.iter().map(|column| counts.get(*column).copied().unwrap_or(0)).collect();
            let files = counts.get("files").copied().unwrap_or(0);
            let cells: Vec<String> = row.iter().map(usize::to_string).collect();
            writeln!(text, "| {} | {kind} | {files} | {} |", DAMAGES[*damage], cells.join(" | ")).unwrap();
            for (sum, cell) in sums.iter_mut().zip([files].iter().chain(&row)) {
                *sum += cell;
            }
        }
        let sums: Vec<String> = sums.iter().map(usize::to_string).collect();
        writeln!(text, "| **all** | | {} |", sums.join(" | ")).unwrap();
        text
    }
}

fn name(judgement: Option<&Judgement>) -> &'static str {
    match judgement.map(|judgement| &judgement.verdict) {
        None => "not recognised",
        Some(Verdict::Incomplete { .. }) => "incomplete",
        Some(Verdict::Corrupted { .. }) => "corrupted",
        Some(Verdict::Valid) => "valid",
        Some(Verdict::Complete { .. }) => "complete",
    }
}

/// The verdict on a whole checkpoint. Orbax has no checksum of all that is needed to load it.
fn whole(case: &Case) -> &'static str {
    if case.kind.starts_with("orbax") { "complete" } else { "valid" }
}

fn is_good(name: &str) -> bool {
    matches!(name, "valid" | "complete")
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoints")
}

#[test]
fn checkpoints_written_by_the_libraries_are_good() {
    for case in cases(&fixtures()) {
        for depth in [Depth::Structure, Depth::Content] {
            let judgement = case.whole.judge(case.rules, depth).expect(case.kind);
            assert_eq!(name(Some(&judgement)), whole(&case), "{} at {depth:?}", case.kind);
            assert_eq!(judgement.step, Some(case.step), "{}", case.kind);
        }
    }
    let all = cases(&fixtures());
    let of = |kind: &str| all.iter().find(|case| case.kind == kind).unwrap();
    let metrics = of("orbax-standard").whole.judge(&orbax::RULES, Depth::Structure).unwrap().metrics;
    assert_eq!(metrics, [("loss".to_owned(), 0.1)].into());
    assert_eq!(of("tensorflow").whole.judge(&tensorflow::RULES, Depth::Structure).unwrap().epoch, Some(1.0));
}

/// Damage to anything with a checksum is found. With TensorFlow that is all but the slack in an index' end record.
#[test]
fn every_flipped_bit_in_tensorflow_files_is_detected() {
    for case in cases(&fixtures()).iter().filter(|case| case.kind.starts_with("tensorflow")) {
        for path in case.whole.files.keys().filter(|path| !path.ends_with(".meta")) {
            let bytes = &case.whole.files[path];
            let slack = if path.ends_with(".index") { bytes.len() - 43..bytes.len() - 8 } else { 0..0 };
            // Every byte, with another of its bits each time.
            for at in (0..bytes.len()).filter(|at| !slack.contains(at)) {
                let mut folder = case.whole.clone();
                folder.files.get_mut(path).unwrap()[at] ^= 1 << (at % 8);
                let judgement = folder.judge(case.rules, Depth::Content);
                assert_ne!(name(judgement.as_ref()), "valid", "{} {path} byte {at}", case.kind);
            }
        }
    }
}

#[test]
fn truncated_checkpoint_files_are_detected() {
    for case in cases(&fixtures()) {
        for (path, bytes) in &case.whole.files {
            // The mere presence of these files says that all is there.
            if path.ends_with("commit_success.txt") || path.ends_with(".meta") {
                continue;
            }
            // A part of a database that was merged into another. Its files are read, but not all of their content.
            let merged = path.contains("ocdbt.process_") && !path.ends_with("manifest.ocdbt");
            for length in (0..bytes.len()).step_by(17).filter(|_| !merged) {
                let mut folder = case.whole.clone();
                folder.files.get_mut(path).unwrap().truncate(length);
                let judgement = folder.judge(case.rules, Depth::Content);
                assert!(!is_good(name(judgement.as_ref())), "{} {path} cut to {length}", case.kind);
            }
        }
    }
}

#[test]
fn damaged_checkpoints_are_judged_without_a_panic() {
    let cases = cases(&fixtures());
    let mut random = Random(1);
    let mut counts = Counts::default();
    for round in 0..600 {
        let case = &cases[round % cases.len()];
        let how = DAMAGES[round / cases.len() % DAMAGES.len()];
        let Some(folder) = damage(case, how, &mut random) else { continue };
        let [structure, content] = [Depth::Structure, Depth::Content].map(|depth| folder.judge(case.rules, depth));
        let verdict = name(content.as_ref());
        // A deeper look finds no less.
        assert!(!is_good(verdict) || name(structure.as_ref()) == verdict, "{} {how}", case.kind);
        assert!(!is_good(verdict) || how != "still being written", "{} {:?}", case.kind, folder.files.keys());
        counts.add(how, case.kind, "files");
        counts.add(how, case.kind, verdict);
    }
    println!("{}", counts.table(&["valid", "complete", "corrupted", "incomplete", "not recognised"]));
}

/// No checkpoint that its own library can't load may be called valid.
#[test]
#[ignore = "soak: it takes a Python with TensorFlow, JAX and Orbax; proved in make test by every_flipped_bit_in_tensorflow_files_is_detected and the tests beside it"]
fn libraries_load_every_checkpoint_judged_valid() {
    let rounds =
        std::env::var("TRAININGJOB_DAMAGES").map_or(1000, |n| n.parse().expect("TRAININGJOB_DAMAGES is a number"));
    let seed = std::env::var("TRAININGJOB_SEED").map_or(1, |seed| seed.parse().expect("TRAININGJOB_SEED is a number"));
    let python = std::env::var("TRAININGJOB_PYTHON").unwrap_or_else(|_| "python3".into());
    let programs = fixtures().join("../../checkpoints");
    let room = Room::new("damages");
    let made = room.path("made");
    let output =
        Command::new(&python).arg(programs.join("make_jax_tf.py")).arg(&made).arg(seed.to_string()).output().unwrap();
    assert!(output.status.success(), "make_jax_tf.py failed: {}", String::from_utf8_lossy(&output.stderr));

    let cases = cases(&made);
    let mut random = Random(seed);
    let mut counts = Counts::default();
    let mut asked = Vec::new();
    for case in &cases {
        for depth in [Depth::Structure, Depth::Content] {
            let judgement = case.whole.judge(case.rules, depth).expect(case.kind);
            assert_eq!(name(Some(&judgement)), whole(case), "{} at {depth:?}", case.kind);
        }
        let undamaged = room.path("undamaged").join(case.kind).join(case.step.to_string()).join(&case.whole.name);
        case.whole.write(&undamaged);
        asked.push((case, "", undamaged.join(&case.given), undamaged.join(&case.given)));
    }
    for round in 0..rounds {
        let case = &cases[round % cases.len()];
        // Every second damage is a flipped bit, which is the hardest to see.
        let how = if (round / cases.len()).is_multiple_of(2) {
            DAMAGES[0]
        } else {
            DAMAGES[round / cases.len() / 2 % DAMAGES.len()]
        };
        let Some(folder) = damage(case, how, &mut random) else { continue };
        let judgement = folder.judge(case.rules, Depth::Content);
        counts.add(how, case.kind, "files");
        counts.add(how, case.kind, name(judgement.as_ref()));
        if is_good(name(judgement.as_ref())) || std::env::var_os("TRAININGJOB_LOAD_ALL").is_some() {
            let path = room.path("damaged").join(round.to_string()).join(&folder.name);
            folder.write(&path);
            let undamaged = room.path("undamaged").join(case.kind).join(case.step.to_string()).join(&case.whole.name);
            asked.push((case, how, path.join(&case.given), undamaged.join(&case.given)));
        }
    }
    let lines: String = asked
        .iter()
        .map(|(case, _, path, undamaged)| format!("{}\t{}\t{}\n", case.kind, path.display(), undamaged.display()))
        .collect();
    let mut checker = Command::new(&python)
        .arg(programs.join("check_jax_tf.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    checker.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let answers = String::from_utf8(checker.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(answers.lines().count(), asked.len(), "check_jax_tf.py did not answer for all");
    let mut wrong = Vec::new();
    for ((case, how, path, _), answer) in asked.iter().zip(answers.lines()) {
        if how.is_empty() {
            assert_eq!(answer, "same", "{} undamaged", case.kind);
            continue;
        }
        let (answer, why) = answer.split_once('\t').unwrap_or((answer, ""));
        counts.add(how, case.kind, &format!("loads: {answer}"));
        if answer == "fails" {
            wrong.push(format!("{} {how}: {why} ({})", case.kind, path.display()));
        }
    }
    println!(
        "{}",
        counts.table(&[
            "valid",
            "complete",
            "corrupted",
            "incomplete",
            "not recognised",
            "loads: same",
            "loads: same, into a tree",
            "loads: differs",
            "loads: fails"
        ])
    );
    assert!(wrong.is_empty(), "{} called valid can't be loaded:\n{}", wrong.len(), wrong.join("\n"));
}
