//! The facade from outside: URLs in, backends and typed errors out.

use std::sync::Arc;

use leasehold::{
    ConnectError, ErrorKind, LeaseClient, MemoryBackend, Registry, RegistryError, Settings, TryAcquire,
    Watchdog, connect,
};

async fn refused(url: &str) -> ConnectError {
    let watchdog = Watchdog::start().expect("threads");
    connect(url, &watchdog).await.err().unwrap_or_else(|| panic!("{url} was taken"))
}

#[tokio::test]
async fn memory_stores_of_one_name_are_one_store() {
    let (one, two) = (Watchdog::start().expect("threads"), Watchdog::start().expect("threads"));
    let a = LeaseClient::with_backend(connect("memory://shared", &one).await.expect("there"), &one);
    let b = LeaseClient::with_backend(connect("memory://shared/", &two).await.expect("there"), &two);
    let c = LeaseClient::with_backend(connect("memory://other", &two).await.expect("there"), &two);
    let name = "n".parse().expect("legal");
    let Ok(TryAcquire::Granted(lease)) = a.try_acquire(&name, &Settings::new()).await else {
        panic!("the first is granted")
    };
    assert!(matches!(b.try_acquire(&name, &Settings::new()).await, Ok(TryAcquire::Held(_))));
    assert!(matches!(c.try_acquire(&name, &Settings::new()).await, Ok(TryAcquire::Granted(_))));
    // Closing one handle closes no other.
    a.shutdown(std::time::Duration::from_secs(1)).await;
    drop(lease);
    assert!(b.inspect(&name).await.is_ok());
}

#[tokio::test]
async fn typing_errors_are_typed_and_name_what_was_meant() {
    let error = refused("memroy://x").await;
    assert!(matches!(&error, ConnectError::UnknownScheme { suggestion: Some(s), .. } if s == "memory"));
    assert!(error.to_string().contains("did you mean \"memory\"?"), "{error}");
    assert_eq!(error.kind(), ErrorKind::ConfigInvalid);
    let error = refused("memory://x?namespace=y").await;
    assert!(matches!(error, ConnectError::UnknownParameter { .. }), "{error}");
    for wrong in ["memory://a/b", "memory://a:1", "memory://a,b", "memory", "", "nosuch://u:hunter2@h"] {
        let error = refused(wrong).await;
        assert_eq!(error.kind(), ErrorKind::ConfigInvalid, "{wrong}: {error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}

#[tokio::test]
async fn third_parties_register_schemes_once() {
    let factory = |_, context| async move { Ok(Arc::new(MemoryBackend::new(context)) as _) };
    let registry = Registry::builder().register("mine+x", factory).build().expect("legal");
    assert!(registry.schemes().any(|s| s == "mine+x") && registry.schemes().any(|s| s == "memory"));
    let watchdog = Watchdog::start().expect("threads");
    assert!(registry.connect("MINE+X://h", &watchdog).await.is_ok());
    let twice = Registry::builder().register("memory", factory).build();
    assert_eq!(twice.err(), Some(RegistryError::Twice { scheme: "memory".into() }));
    let illegal = Registry::builder().register("Mine", factory).build();
    assert_eq!(illegal.err(), Some(RegistryError::IllegalScheme { scheme: "Mine".into() }));
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn sqlite_files_are_named_by_url() {
    let dir = tempfile::tempdir().expect("a directory");
    let watchdog = Watchdog::start().expect("threads");
    let url = format!("sqlite://{}/my%20leases.db?busy_timeout=2s", dir.path().display());
    let client = LeaseClient::with_backend(connect(&url, &watchdog).await.expect("there"), &watchdog);
    let name = "n".parse().expect("legal");
    assert!(matches!(client.try_acquire(&name, &Settings::new()).await, Ok(TryAcquire::Granted(_))));
    assert!(dir.path().join("my leases.db").exists());
    client.shutdown(std::time::Duration::from_secs(1)).await;

    let error = refused(&url.replace("busy_timeout", "bsuy_timeout")).await;
    assert!(error.to_string().contains("did you mean \"busy_timeout\"?"), "{error}");
    let error = refused(&url.replace("=2s", "=soon")).await;
    assert_eq!(error.kind(), ErrorKind::ConfigInvalid, "{error}");
    for wrong in ["sqlite:", "sqlite://", "sqlite::memory:", "sqlite:x%00y"] {
        assert_eq!(refused(wrong).await.kind(), ErrorKind::ConfigInvalid, "{wrong}");
    }
}

#[cfg(not(feature = "sqlite"))]
#[tokio::test]
async fn a_scheme_whose_feature_is_off_names_the_feature() {
    let error = refused("sqlite:x.db").await;
    assert!(matches!(error, ConnectError::FeatureMissing { feature: "sqlite", .. }), "{error}");
}
