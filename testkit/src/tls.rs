//! Certificates for one test, made on the spot: good ones, and each kind of bad one.
//!
//! 1. [`Pki::new`] makes two authorities that know nothing of each other, and the certificates below as
//!    PEM files in a directory of its own.
//! 2. A server is started with [`Pki::server`] or one of the bad ones; a client trusts [`Pki::ca`].
//! 3. The directory goes away with the last clone of the value.
//!
//! | certificate | signed by | good for | wrong with it |
//! |---|---|---|---|
//! | [`server`](Pki::server) | [`ca`](Pki::ca) | localhost, 127.0.0.1, ::1; also as a client towards its peers | – |
//! | [`client`](Pki::client) | `ca` | clients (common name `client`) | – |
//! | [`expired_server`](Pki::expired_server) | `ca` | as `server` | ended in 2021 |
//! | [`wrong_host_server`](Pki::wrong_host_server) | `ca` | `elsewhere.invalid`, 192.0.2.1 | not where it is found |
//! | [`expired_client`](Pki::expired_client) | `ca` | as `client` | ended in 2021 |
//! | [`foreign_server`](Pki::foreign_server), [`foreign_client`](Pki::foreign_client) | [`foreign_ca`](Pki::foreign_ca) | as the good ones | nobody here knows who signed them |

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};

use crate::Scratch;

/// Where all certificates here are found by clients.
const HERE: &[&str] = &["localhost", "127.0.0.1", "::1"];
const ELSEWHERE: &[&str] = &["elsewhere.invalid", "192.0.2.1"];

/// A certificate and its private key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate.
    pub cert: PathBuf,
    /// The private key (PKCS #8).
    pub key: PathBuf,
}

/// Two authorities and what they signed. Cheap to clone; the files live as long as the last clone.
#[derive(Clone)]
pub struct Pki(Arc<Scratch>);

/// From when to when a certificate is good.
#[derive(Clone, Copy)]
enum Validity {
    Now,
    Past,
}

impl Pki {
    /// Makes keys and certificates.
    ///
    /// # Errors
    /// When there is no randomness, or the files cannot be written.
    pub fn new() -> io::Result<Self> {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        let pki = Pki(Arc::new(Scratch::new()));
        let ours = pki.authority("ca", "leasehold test authority")?;
        let foreign = pki.authority("foreign-ca", "foreign test authority")?;
        // A server is a client towards its peers, as a replica or a member of a cluster.
        let (server, client) = (&[ServerAuth, ClientAuth][..], &[ClientAuth][..]);
        pki.issue(&ours, "server", "server", HERE, server, Validity::Now)?;
        pki.issue(&ours, "client", "client", &[], client, Validity::Now)?;
        pki.issue(&ours, "expired-server", "server", HERE, server, Validity::Past)?;
        pki.issue(&ours, "expired-client", "client", &[], client, Validity::Past)?;
        pki.issue(&ours, "wrong-host-server", "elsewhere", ELSEWHERE, server, Validity::Now)?;
        pki.issue(&foreign, "foreign-server", "server", HERE, server, Validity::Now)?;
        pki.issue(&foreign, "foreign-client", "client", &[], client, Validity::Now)?;
        Ok(pki)
    }

    /// The authority that signed all but the foreign ones.
    pub fn ca(&self) -> PathBuf {
        self.file("ca.pem")
    }

    /// Another authority, which nobody trusts by default.
    pub fn foreign_ca(&self) -> PathBuf {
        self.file("foreign-ca.pem")
    }

    /// A good certificate for a server on this machine.
    pub fn server(&self) -> Identity {
        self.identity("server")
    }

    /// A good certificate for a client, with the common name `client`.
    pub fn client(&self) -> Identity {
        self.identity("client")
    }

    /// A server's certificate whose time is over.
    pub fn expired_server(&self) -> Identity {
        self.identity("expired-server")
    }

    /// A client's certificate whose time is over.
    pub fn expired_client(&self) -> Identity {
        self.identity("expired-client")
    }

    /// A server's certificate for another host.
    pub fn wrong_host_server(&self) -> Identity {
        self.identity("wrong-host-server")
    }

    /// A server's certificate by the foreign authority.
    pub fn foreign_server(&self) -> Identity {
        self.identity("foreign-server")
    }

    /// A client's certificate by the foreign authority.
    pub fn foreign_client(&self) -> Identity {
        self.identity("foreign-client")
    }

    /// The directory with all of them.
    pub fn dir(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn identity(&self, name: &str) -> Identity {
        Identity { cert: self.file(&format!("{name}.pem")), key: self.file(&format!("{name}.key")) }
    }

    fn authority(&self, file: &str, name: &str) -> io::Result<Issuer<'static, KeyPair>> {
        let mut params = params(name, &[], Validity::Now)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let cert = params.self_signed(&key).map_err(io::Error::other)?;
        fs::write(self.file(&format!("{file}.pem")), cert.pem())?;
        Ok(Issuer::new(params, key))
    }

    fn issue(
        &self,
        by: &Issuer<'static, KeyPair>,
        file: &str,
        name: &str,
        hosts: &[&str],
        purposes: &[ExtendedKeyUsagePurpose],
        validity: Validity,
    ) -> io::Result<()> {
        let mut params = params(name, hosts, validity)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = purposes.to_vec();
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let cert = params.signed_by(&key, by).map_err(io::Error::other)?;
        let Identity { cert: cert_file, key: key_file } = self.identity(file);
        fs::write(cert_file, cert.pem())?;
        fs::write(&key_file, key.serialize_pem())?;
        crate::scratch::set_mode(&key_file, 0o600)
    }
}

impl fmt::Debug for Pki {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pki").field(&self.dir()).finish()
    }
}

fn params(name: &str, hosts: &[&str], validity: Validity) -> io::Result<CertificateParams> {
    let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
    let mut params = CertificateParams::new(hosts).map_err(io::Error::other)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    // Far from today on both sides, so that a test may step the clock of one side by years.
    (params.not_before, params.not_after) = match validity {
        Validity::Now => (date_time_ymd(2010, 1, 1), date_time_ymd(2049, 1, 1)),
        Validity::Past => (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1)),
    };
    Ok(params)
}
