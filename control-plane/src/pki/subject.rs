//! A certificate's subject with any number of organizations.
//!
//! Pure. `rcgen` keeps a name as a map and so writes each attribute once, but each group of a
//! Kubernetes user is an `O` of its own. This takes a certificate `rcgen` made, puts another
//! subject into it and has it signed again. The encoding is DER (X.690); the layout is RFC
//! 5280, 4.1.

use rcgen::SigningKey;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const BIT_STRING: u8 = 0x03;
/// Explicit tag 0: the version, which only v1 certificates lack.
const VERSION: u8 = 0xa0;
/// Place of the subject among a v3 certificate's fields.
const SUBJECT: usize = 5;
/// `id-at-commonName`, 2.5.4.3.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
/// `id-at-organizationName`, 2.5.4.10.
const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];

/// Why a certificate could not be given a subject.
#[derive(Debug, thiserror::Error)]
pub enum SubjectError {
    /// It is not what `rcgen` makes.
    #[error("the certificate is no v3 certificate in DER")]
    Layout,
    /// It could not be signed.
    #[error(transparent)]
    Sign(#[from] rcgen::Error),
}

/// The certificate with the subject `O=organizations…, CN=common_name`, signed by `key`, which
/// must be the key that signed it before.
pub(super) fn replace(
    certificate: &[u8],
    common_name: &str,
    organizations: &[&str],
    key: &impl SigningKey,
) -> Result<Vec<u8>, SubjectError> {
    let outer = one(certificate, SEQUENCE)?;
    let [to_be_signed, algorithm, _signature] = &elements(outer.content)?[..] else {
        return Err(SubjectError::Layout);
    };
    let fields = elements(one(to_be_signed.whole, SEQUENCE)?.content)?;
    let is_v3 = fields.first().is_some_and(|field| field.tag == VERSION);
    if !is_v3
        || fields
            .get(SUBJECT)
            .is_none_or(|field| field.tag != SEQUENCE)
    {
        return Err(SubjectError::Layout);
    }
    let mut name: Vec<u8> = organizations
        .iter()
        .flat_map(|organization| attribute(ORGANIZATION, organization))
        .collect();
    name.extend(attribute(COMMON_NAME, common_name));
    let subject = encode(SEQUENCE, &name);
    let content: Vec<u8> = fields
        .iter()
        .enumerate()
        .flat_map(|(at, field)| if at == SUBJECT { &subject } else { field.whole })
        .copied()
        .collect();
    let to_be_signed = encode(SEQUENCE, &content);
    // The first octet says how many bits of the last one do not count.
    let mut signature = vec![0];
    signature.extend(key.sign(&to_be_signed)?);
    let signature = encode(BIT_STRING, &signature);
    Ok(encode(
        SEQUENCE,
        &[&to_be_signed, algorithm.whole, &signature].concat(),
    ))
}

/// A relative distinguished name of one attribute.
fn attribute(oid: [u8; 3], value: &str) -> Vec<u8> {
    let pair = [
        encode(OBJECT_IDENTIFIER, &oid),
        encode(UTF8_STRING, value.as_bytes()),
    ];
    encode(SET, &encode(SEQUENCE, &pair.concat()))
}

fn encode(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut der = vec![tag];
    let length = content.len();
    if let Ok(short @ ..0x80) = u8::try_from(length) {
        der.push(short);
    } else {
        let bytes: Vec<u8> = length
            .to_be_bytes()
            .into_iter()
            .skip_while(|byte| *byte == 0)
            .collect();
        // A length has at most eight octets.
        der.push(0x80 | u8::try_from(bytes.len()).unwrap_or_default());
        der.extend(bytes);
    }
    der.extend(content);
    der
}

struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    whole: &'a [u8],
}

fn one(der: &[u8], tag: u8) -> Result<Element<'_>, SubjectError> {
    match (first(der), tag) {
        (Some((element, [])), tag) if element.tag == tag => Ok(element),
        _ => Err(SubjectError::Layout),
    }
}

fn elements(mut der: &[u8]) -> Result<Vec<Element<'_>>, SubjectError> {
    let mut found = Vec::new();
    while !der.is_empty() {
        let (element, rest) = first(der).ok_or(SubjectError::Layout)?;
        found.push(element);
        der = rest;
    }
    Ok(found)
}

/// The first element and what follows it.
fn first(der: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let (tag, length) = (*der.first()?, *der.get(1)?);
    let (header, length) = if length < 0x80 {
        (2, usize::from(length))
    } else {
        let octets = usize::from(length & 0x7f);
        let bytes = der.get(2..2 + octets).filter(|b| b.len() <= 4)?;
        let length = bytes
            .iter()
            .fold(0, |length, byte| length << 8 | usize::from(*byte));
        (2 + octets, length)
    };
    let whole = der.get(..header.checked_add(length)?)?;
    let element = Element {
        tag,
        content: whole.get(header..)?,
        whole,
    };
    Some((element, der.get(whole.len()..)?))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use x509_parser::prelude::{FromDer as _, X509Certificate};

    use super::*;

    #[test]
    fn every_group_is_an_organization_and_the_signature_holds() {
        let key = KeyPair::generate().unwrap();
        let plain = CertificateParams::default().self_signed(&key).unwrap();
        let groups = ["developers", "größe", &"x".repeat(300)];
        let der = replace(plain.der(), "jane", &groups, &key).unwrap();
        let (rest, certificate) = X509Certificate::from_der(&der).unwrap();
        assert!(rest.is_empty());
        let subject = certificate.subject();
        let found: Vec<_> = subject
            .iter_organization()
            .map(|group| group.as_str().unwrap())
            .collect();
        assert_eq!(found, groups);
        let name = subject.iter_common_name().next().unwrap();
        assert_eq!(name.as_str().unwrap(), "jane");
        certificate
            .verify_signature(Some(certificate.public_key()))
            .unwrap();
    }

    #[test]
    fn what_is_no_certificate_is_refused() {
        let key = KeyPair::generate().unwrap();
        let plain = CertificateParams::default().self_signed(&key).unwrap();
        for cut in 0..plain.der().len() {
            assert!(replace(&plain.der()[..cut], "a", &[], &key).is_err());
        }
    }
}
