//! Which store: `--store`, `LEASEHOLD_STORE`, a configuration file, or a file of the user's own.
//!
//! ```toml
//! default = "prod"
//!
//! [stores.prod]
//! url = "sqlite:///var/lib/leases.db"
//! ```
//!
//! Files are read in this order, and a later one wins key by key: `/etc/leasehold/config.toml`,
//! `$XDG_CONFIG_HOME/leasehold/config.toml`, `./leasehold.toml`. `${env:NAME}` in a URL is replaced
//! by that variable, so that a file needs no secret in it. An unknown key is an error: a typing
//! error in a safety tool must not be ignored.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use leasehold::{StoreUrl, did_you_mean};

use crate::exit::Failure;

/// The variable that names the store.
pub(crate) const STORE_VAR: &str = "LEASEHOLD_STORE";
/// The system's file. The user's and the project's come after it.
const SYSTEM_FILE: &str = "/etc/leasehold/config.toml";
const PROJECT_FILE: &str = "leasehold.toml";
/// Larger files are no configuration.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The store that was chosen.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) url: StoreUrl,
    /// Secret: never shown.
    pub(crate) text: String,
    /// The name that it was chosen by, where it has one.
    pub(crate) name: Option<String>,
    /// `LEASEHOLD_STORE` chose it: a job inherits the choice.
    pub(crate) from_variable: bool,
}

#[derive(Debug, Default)]
struct Config {
    default: Option<(String, PathBuf)>,
    stores: BTreeMap<String, (String, PathBuf)>,
}

/// Where to look: everything from outside, so that tests need no environment.
pub(crate) struct Surroundings {
    pub(crate) var: fn(&str) -> Option<String>,
    pub(crate) system_file: PathBuf,
    pub(crate) directory: PathBuf,
}

impl Surroundings {
    pub(crate) fn of_process() -> Self {
        Surroundings {
            var: |name| std::env::var(name).ok().filter(|value| !value.is_empty()),
            system_file: PathBuf::from(SYSTEM_FILE),
            directory: PathBuf::new(),
        }
    }

    fn dir(&self, var: &str, fallback: &str) -> Option<PathBuf> {
        let absolute = |path: PathBuf| path.is_absolute().then_some(path);
        let own = (self.var)(var).map(PathBuf::from).and_then(absolute);
        own.or_else(|| (self.var)("HOME").map(|home| Path::new(&home).join(fallback)).and_then(absolute))
    }

    fn files(&self) -> Vec<PathBuf> {
        let user = self.dir("XDG_CONFIG_HOME", ".config").map(|dir| dir.join("leasehold/config.toml"));
        let project = self.directory.join(PROJECT_FILE);
        [Some(self.system_file.clone()), user, Some(project)].into_iter().flatten().collect()
    }

    /// Chooses the store. `flag` is what `--store` said.
    pub(crate) fn store(&self, flag: Option<&str>) -> Result<Store, Failure> {
        let chosen = match flag {
            Some(text) => Some((text.to_owned(), "--store".to_owned())),
            None => (self.var)(STORE_VAR).map(|text| (text, STORE_VAR.to_owned())),
        };
        match chosen {
            Some((text, origin)) if text.contains(':') => self.parse(text, None, &origin),
            Some((name, origin)) => self.named(&self.config()?, &name, &origin),
            None => {
                let config = self.config()?;
                match &config.default {
                    Some((name, file)) => {
                        self.named(&config, name, &format!("default in {}", file.display()))
                    }
                    None => self.own_file(),
                }
            }
        }
    }

    fn parse(&self, text: String, name: Option<String>, origin: &str) -> Result<Store, Failure> {
        let url = text.parse().map_err(|e| Failure::config(format_args!("{origin}: {e}")))?;
        Ok(Store { url, text, name, from_variable: origin == STORE_VAR })
    }

    fn named(&self, config: &Config, name: &str, origin: &str) -> Result<Store, Failure> {
        let Some((url, file)) = config.stores.get(name) else {
            let known: Vec<&str> = config.stores.keys().map(String::as_str).collect();
            let meant = match did_you_mean(name, known.iter().copied()) {
                Some(word) => format!(" (did you mean {word:?}?)"),
                None => String::new(),
            };
            let there = match known.as_slice() {
                [] => "no configuration file defines any".to_owned(),
                known => format!("there are {}", known.join(", ")),
            };
            return Err(Failure::config(format_args!(
                "{origin}: no store is named {name:?}{meant}: {there}. A URL has a scheme and a colon, as sqlite:///var/lib/leases.db"
            )));
        };
        let from_variable = origin == STORE_VAR;
        let origin = format!("stores.{name}.url in {}", file.display());
        let text = self.expand(url).map_err(|e| Failure::config(format_args!("{origin}: {e}")))?;
        let store = self.parse(text, Some(name.to_owned()), &origin)?;
        Ok(Store { from_variable, ..store })
    }

    /// The store of a user who chose none: a file under the state directory.
    fn own_file(&self) -> Result<Store, Failure> {
        if !cfg!(feature = "sqlite") {
            return Err(Failure::config("no store was chosen: give --store or set LEASEHOLD_STORE"));
        }
        let state = self.dir("XDG_STATE_HOME", ".local/state").ok_or_else(|| {
            Failure::config("no store was chosen, and there is no HOME to keep one in: give --store or set LEASEHOLD_STORE")
        })?;
        let dir = state.join("leasehold");
        make_private_dir(&dir).map_err(|e| {
            Failure::config(format_args!("cannot make {} for the default store: {e}", dir.display()))
        })?;
        self.parse(sqlite_url(&dir.join("leases.db")), None, "the default store")
    }

    fn config(&self) -> Result<Config, Failure> {
        let mut config = Config::default();
        for file in self.files() {
            let wrong = |e: &dyn std::fmt::Display| Failure::config(format_args!("{}: {e}", file.display()));
            match std::fs::metadata(&file) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                // A directory on the way that may not be searched hides no file of ours.
                Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => continue,
                Err(e) => return Err(wrong(&e)),
                // Reading a pipe or a device may block for ever.
                Ok(meta) if !meta.is_file() => return Err(wrong(&"it is no regular file")),
                Ok(meta) if meta.len() > FILE_BYTES_MAX => return Err(wrong(&"it is too large")),
                Ok(_) => {}
            }
            let text = std::fs::read_to_string(&file).map_err(|e| wrong(&e))?;
            config.take(&text, &file).map_err(|e| wrong(&e))?;
        }
        Ok(config)
    }

    /// Replaces every `${env:NAME}`. Errors name variables, never values.
    fn expand(&self, text: &str) -> Result<String, String> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            out.push_str(&rest[..start]);
            let end = rest[start..].find('}').ok_or("a ${ is not closed")? + start;
            let name = rest[start + 2..end].strip_prefix("env:").ok_or("only ${env:NAME} is known")?;
            out.push_str(&(self.var)(name).ok_or_else(|| format!("the variable {name} is not set"))?);
            rest = &rest[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }
}

impl Config {
    /// Takes one file over what came before.
    fn take(&mut self, text: &str, file: &Path) -> Result<(), String> {
        // The parser's own message quotes the line, which may hold a secret: only its place is told.
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
            let line =
                e.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            format!("line {line} is no TOML")
        })?;
        for (key, value) in table {
            match (key.as_str(), value) {
                ("default", toml::Value::String(name)) => self.default = Some((name, file.to_owned())),
                ("stores", toml::Value::Table(stores)) => {
                    for (name, store) in stores {
                        let url = store_url(&name, store)?;
                        self.stores.insert(name, (url, file.to_owned()));
                    }
                }
                ("default", _) => return Err("`default` must be the name of a store, in quotes".to_owned()),
                ("stores", _) => return Err("`stores` must be tables: [stores.NAME]".to_owned()),
                (other, _) => return Err(unknown_key(other, &["default", "stores"])),
            }
        }
        Ok(())
    }
}

fn store_url(name: &str, store: toml::Value) -> Result<String, String> {
    let toml::Value::Table(store) = store else {
        return Err(format!("[stores.{name}] must be a table with a url"));
    };
    let mut url = None;
    for (key, value) in store {
        match (key.as_str(), value) {
            ("url", toml::Value::String(text)) => url = Some(text),
            ("url", _) => return Err(format!("stores.{name}.url must be a text in quotes")),
            (other, _) => return Err(format!("[stores.{name}]: {}", unknown_key(other, &["url"]))),
        }
    }
    url.ok_or_else(|| format!("[stores.{name}] has no url"))
}

fn unknown_key(key: &str, known: &[&str]) -> String {
    let meant = match did_you_mean(key, known.iter().copied()) {
        Some(word) => format!(" (did you mean {word:?}?)"),
        None => String::new(),
    };
    format!("unknown key {key:?}{meant}: known are {}", known.join(", "))
}

impl Store {
    /// What a job needs to find the same store again, wherever it changes its directory to; none
    /// where that would put a secret into its environment.
    pub(crate) fn for_job(&self) -> Option<String> {
        if !self.url.is_public() {
            return self.name.clone();
        }
        if self.url.scheme() != "sqlite" {
            return Some(self.text.clone());
        }
        let path = std::path::absolute(self.url.file_path().ok()?).ok()?;
        let query = self.text.split_once('?').map_or(String::new(), |(_, query)| format!("?{query}"));
        Some(sqlite_url(&path) + &query)
    }
}

/// The URL of a file, percent-encoded. A path that is no UTF-8 cannot be named by a URL that passes
/// through the environment, and gives a URL that is refused.
fn sqlite_url(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let mut url = "sqlite://".to_owned();
    for &b in path.as_os_str().as_bytes() {
        if b.is_ascii_alphanumeric() || b"/._-~+,=@:".contains(&b) {
            url.push(char::from(b));
        } else {
            url.push_str(&format!("%{b:02X}"));
        }
    }
    url
}

fn make_private_dir(dir: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    if dir.is_dir() {
        return Ok(());
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surroundings(dir: &Path, var: fn(&str) -> Option<String>) -> Surroundings {
        Surroundings { var, system_file: dir.join("system.toml"), directory: dir.to_owned() }
    }

    fn none(_: &str) -> Option<String> {
        None
    }

    fn refused(text: &str) -> String {
        Config::default().take(text, Path::new("x.toml")).expect_err(text)
    }

    #[test]
    fn unknown_keys_and_wrong_types_are_refused() {
        assert!(refused("defualt = \"a\"").contains("did you mean \"default\"?"));
        assert!(refused("[stores.a]\nurll = \"x\"").contains("did you mean \"url\"?"));
        assert!(refused("[stores.a]").contains("no url"));
        assert!(refused("default = 7").contains("name of a store"));
        assert!(refused("stores = 7").contains("[stores.NAME]"));
        let broken = refused("\n[stores.a]\nurl = \"redis://u:hunter2@h");
        assert!(broken.contains("line 3") && !broken.contains("hunter2"), "{broken}");
    }

    #[test]
    fn later_files_win_key_by_key_and_flags_win_over_all() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("written");
        write(
            "system.toml",
            "default = \"a\"\n[stores.a]\nurl = \"memory://sys\"\n[stores.b]\nurl = \"memory://b\"",
        );
        write("leasehold.toml", "[stores.a]\nurl = \"memory://proj\"");
        let here = surroundings(dir.path(), none);
        assert_eq!(here.store(None).expect("there").text, "memory://proj");
        assert_eq!(here.store(Some("b")).expect("there").text, "memory://b");
        assert_eq!(here.store(Some("memory://c")).expect("there").text, "memory://c");
        let missing = here.store(Some("prod")).expect_err("not there");
        assert!(missing.message.contains("there are a, b"), "{}", missing.message);
        let from_env = surroundings(dir.path(), |var| (var == STORE_VAR).then(|| "b".to_owned()));
        assert_eq!(from_env.store(None).expect("there").name.as_deref(), Some("b"));
    }

    #[test]
    fn variables_are_put_in_and_never_shown() {
        let dir = tempfile::tempdir().expect("a directory");
        let text = "[stores.a]\nurl = \"redis://u:${env:PW}@h\"\n[stores.b]\nurl = \"redis://${env:NOT}\"\n[stores.c]\nurl = \"x:${file:y}\"";
        std::fs::write(dir.path().join("leasehold.toml"), text).expect("written");
        let here = surroundings(dir.path(), |var| (var == "PW").then(|| "hunter2".to_owned()));
        let store = here.store(Some("a")).expect("there");
        assert_eq!(store.text, "redis://u:hunter2@h");
        assert_eq!(store.for_job().as_deref(), Some("a"));
        assert!(here.store(Some("b")).expect_err("unset").message.contains("NOT is not set"));
        assert!(here.store(Some("c")).expect_err("unknown").message.contains("only ${env:NAME}"));
    }

    #[test]
    fn a_job_gets_an_absolute_url_without_secrets() {
        let store = |text: &str| Store {
            url: text.parse().expect("legal"),
            text: text.to_owned(),
            name: None,
            from_variable: false,
        };
        let cwd = std::env::current_dir().expect("a directory");
        let job = store("sqlite:a%20b.db?mode=rwc").for_job().expect("public");
        let back: StoreUrl = job.parse().expect("legal");
        assert_eq!(back.file_path().expect("a file"), cwd.join("a b.db"));
        assert!(job.ends_with("?mode=rwc"), "{job}");
        assert_eq!(store("redis://u:pw@h").for_job(), None);
        assert_eq!(store("sqlite:a.db?key=pw").for_job(), None);
        assert_eq!(store("memory://x").for_job().as_deref(), Some("memory://x"));
    }
}
