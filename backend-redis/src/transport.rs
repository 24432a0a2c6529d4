//! Streams: TCP, TLS and Unix sockets.
//!
//! TLS names its cryptography itself (ring), so that it works whatever else is in the program, without anything
//! installed for the whole process, and never panics for want of a choice.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use leasehold_core::{BackendError, ErrorKind};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::error::{UNKNOWN_HOST, connecting, refused};
use crate::{Address, ConfigError, RedisConfig, TlsConfig};

/// A connected stream.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

/// How to make streams: addresses and TLS settings, read once.
#[derive(Clone)]
pub(crate) struct Transport {
    address: Address,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Transport {
    /// Reads certificates and keys.
    pub(crate) fn new(config: &RedisConfig) -> Result<Self, BackendError> {
        let tls = match &config.address {
            Address::Tls { host, .. } => Some(connector(host, &config.tls)?),
            _ => None,
        };
        Ok(Transport { address: config.address.clone(), tls })
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Connects, on the runtime that polls this.
    pub(crate) async fn connect(&self, op: &'static str) -> Result<Stream, BackendError> {
        self.open().await.map_err(|e| connecting(op, self.is_encrypted(), e))
    }

    async fn open(&self) -> io::Result<Stream> {
        let (host, port) = match &self.address {
            Address::Unix(path) => return UnixStream::connect(path).await.map(Stream::Unix),
            Address::Tcp { host, port } | Address::Tls { host, port } => (host, *port),
        };
        let found = lookup_host((bare(host), port)).await;
        let addresses: Vec<SocketAddr> = found.map_err(|e| io::Error::new(UNKNOWN_HOST, e))?.collect();
        let stream = TcpStream::connect(&addresses[..]).await?;
        // A call is one small packet: it must not wait for the acknowledgement of the one before.
        stream.set_nodelay(true)?;
        match &self.tls {
            None => Ok(Stream::Tcp(stream)),
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await?;
                Ok(Stream::Tls(Box::new(stream)))
            }
        }
    }
}

/// A host without the brackets that a URL puts around IPv6 addresses.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn connector(host: &str, tls: &TlsConfig) -> Result<(TlsConnector, ServerName<'static>), BackendError> {
    let wrong = |message: &str| refused("connect", ErrorKind::ConfigInvalid, message);
    let name = tls.server_name.as_deref().unwrap_or(bare(host));
    let name = ServerName::try_from(name.to_owned())
        .map_err(|_| wrong("the host is no name that a certificate can have: give tls_server_name"))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|_| wrong("no version of TLS is possible in this build"))?;
    let builder = if tls.insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(TrustAnybody(provider)))
    } else {
        builder.with_root_certificates(roots(tls)?)
    };
    let config = match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => {
            let chain = certificates("tls_cert", cert)?;
            let key = PrivateKeyDer::from_pem_slice(&read("tls_key", key)?).map_err(|_| {
                ConfigError::BadValue { name: "tls_key", expected: "a file with a private key in PEM" }
            })?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|_| wrong("tls_key is not the key of tls_cert, or of a kind that is not known"))?
        }
        _ => builder.with_no_client_auth(),
    };
    Ok((TlsConnector::from(Arc::new(config)), name))
}

/// Whom to trust: the authorities of `tls_ca`, or the system's.
fn roots(tls: &TlsConfig) -> Result<RootCertStore, BackendError> {
    let mut roots = RootCertStore::empty();
    match &tls.ca {
        Some(path) => {
            for certificate in certificates("tls_ca", path)? {
                roots.add(certificate).map_err(|_| ConfigError::BadValue {
                    name: "tls_ca",
                    expected: "a file with certificates of authorities in PEM",
                })?;
            }
        }
        None => {
            // One that cannot be read is one not trusted: only an empty list is an error.
            let (_added, _ignored) =
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        let message = "this system trusts no certificate authority: give one with tls_ca";
        return Err(refused("connect", ErrorKind::ConfigInvalid, message));
    }
    Ok(roots)
}

fn certificates(
    name: &'static str,
    path: &std::path::Path,
) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let bad = ConfigError::BadValue { name, expected: "a file with certificates in PEM" };
    let text = read(name, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(bad),
    }
}

fn read(name: &'static str, path: &std::path::Path) -> Result<Vec<u8>, ConfigError> {
    std::fs::read(path).map_err(|e| ConfigError::BadFile { name, kind: e.kind() })
}

/// `tls_insecure`: any certificate will do; signatures are still checked.
#[derive(Debug)]
struct TrustAnybody(Arc<CryptoProvider>);

impl ServerCertVerifier for TrustAnybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

macro_rules! each {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Stream::Tcp(s) => {
                let $stream = Pin::new(s);
                $call
            }
            Stream::Tls(s) => {
                let $stream = Pin::new(s.as_mut());
                $call
            }
            Stream::Unix(s) => {
                let $stream = Pin::new(s);
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self, s => s.poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, s => s.poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, s => s.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, s => s.poll_shutdown(cx))
    }
}
