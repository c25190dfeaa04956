//! Keys and certificates of one control plane. All certificates are X.509 v3; rustls refuses older ones.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use super::super::error::{Context, Result};

/// A certificate authority which lives as long as one control plane.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// A certificate with its key, both in PEM form.
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

/// The files of an [`Identity`].
#[derive(Clone, Debug)]
pub struct IdentityFiles {
    pub certificate: PathBuf,
    /// Readable by its owner only.
    pub key: PathBuf,
}

impl Authority {
    pub fn new() -> Result<Self> {
        let mut params = params("csi-attacher-operator test CA", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            certificate,
        })
    }

    /// In PEM form.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate for a server that is reached by these DNS names and IP addresses.
    pub fn server(&self, names: &[&str]) -> Result<Identity> {
        let mut params = params("server", None);
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate for a client. Kubernetes takes the common name as the user and the organization as a group.
    pub fn client(&self, user: &str, group: Option<&str>) -> Result<Identity> {
        self.sign(params(user, group), ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Result<Identity> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Identity {
            certificate,
            key: key.serialize_pem(),
        })
    }
}

impl Identity {
    /// Writes `<name>.crt` and `<name>.key` into a folder.
    pub fn write(&self, folder: &Path, name: &str) -> Result<IdentityFiles> {
        let files = IdentityFiles {
            certificate: folder.join(format!("{name}.crt")),
            key: folder.join(format!("{name}.key")),
        };
        write_private(&files.certificate, &self.certificate)?;
        write_private(&files.key, &self.key)?;
        Ok(files)
    }
}

/// A new private key for signing service account tokens and its public key, both in PEM form.
pub fn signing_key_pair() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

/// Writes a file which only its owner can read.
pub fn write_private(path: &Path, content: &str) -> Result<()> {
    OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .while_trying(|| format!("write {}", path.display()))
}

fn params(common_name: &str, organization: Option<&str>) -> CertificateParams {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = name;
    params
}
