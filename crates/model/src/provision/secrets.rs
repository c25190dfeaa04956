//! The Secrets that a StorageClass names for the calls about its volumes, as templates.

use std::sync::Arc;

use super::refusal::{ProvisionRefusal, TemplateFault};
use crate::api::{is_label, is_subdomain};
use crate::objects::{Claim, SecretReference, StorageClass};

named! {
    /// Which calls a Secret is for; the words are for messages.
    #[allow(missing_docs, reason = "the variants are the names of the calls")]
    pub enum SecretFamily {
        /// For every family that has no keys of its own.
        Default = "all calls",
        /// CreateVolume and DeleteVolume.
        Provisioner = "provisioner",
        ControllerPublish = "controller publish",
        NodeStage = "node stage",
        NodePublish = "node publish",
        ControllerExpand = "controller expand",
        NodeExpand = "node expand",
        ControllerModify = "controller modify",
    }
}

/// The keys of a family: name and namespace.
type Keys = (&'static str, &'static str);

macro_rules! keys {
    ($family:literal) => {
        (
            concat!("csi.storage.k8s.io/", $family, "secret-name"),
            concat!("csi.storage.k8s.io/", $family, "secret-namespace"),
        )
    };
}

impl SecretFamily {
    /// Whether a parameter of a class is one of the reserved keys of Secrets.
    pub fn is_key(parameter: &str) -> bool {
        let is_one = |family: &Self| [family.keys().0, family.keys().1].contains(&parameter);
        Self::ALL.iter().any(is_one)
    }

    const fn keys(self) -> Keys {
        match self {
            Self::Default => keys!(""),
            Self::Provisioner => keys!("provisioner-"),
            Self::ControllerPublish => keys!("controller-publish-"),
            Self::NodeStage => keys!("node-stage-"),
            Self::NodePublish => keys!("node-publish-"),
            Self::ControllerExpand => keys!("controller-expand-"),
            Self::NodeExpand => keys!("node-expand-"),
            Self::ControllerModify => keys!("controller-modify-"),
        }
    }

    /// The keys from before the prefix, which are still in use.
    const fn deprecated_keys(self) -> Option<Keys> {
        match self {
            Self::Provisioner => Some(("csiProvisionerSecretName", "csiProvisionerSecretNamespace")),
            Self::ControllerPublish => Some(("csiControllerPublishSecretName", "csiControllerPublishSecretNamespace")),
            Self::NodeStage => Some(("csiNodeStageSecretName", "csiNodeStageSecretNamespace")),
            Self::NodePublish => Some(("csiNodePublishSecretName", "csiNodePublishSecretNamespace")),
            _ => None,
        }
    }

    /// The key that took the place of a deprecated one.
    pub(super) fn key_in_place_of(deprecated: &str) -> Option<&'static str> {
        Self::ALL.iter().find_map(|family| {
            let (keys, old) = (family.keys(), family.deprecated_keys()?);
            match deprecated {
                name if name == old.0 => Some(keys.0),
                namespace if namespace == old.1 => Some(keys.1),
                _ => None,
            }
        })
    }
}

/// Name and namespace of a Secret as a class has them, with the keys that they stand under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SecretTemplate<'a> {
    keys: Keys,
    name: &'a str,
    namespace: &'a str,
}

/// The templates of a class, by family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretTemplates<'a> {
    class: &'a Arc<str>,
    /// Those of the keys that a family has of its own.
    templates: [Option<SecretTemplate<'a>>; 8],
    /// That of the default keys. What is wrong with them counts where they are read, as in external-provisioner: for a family that has no
    /// keys of its own.
    default: Result<Option<SecretTemplate<'a>>, ProvisionRefusal>,
}

/// What the tokens of a template stand for.
#[derive(Clone, Copy, Debug)]
pub struct TemplateContext<'a> {
    /// `${pv.name}`.
    pub volume: &'a str,
    /// `${pvc.namespace}`.
    pub namespace: &'a str,
    /// `${pvc.name}`.
    pub name: &'a str,
    /// Where annotations are looked up; none once the claim is gone.
    pub claim: Option<&'a Claim>,
}

impl<'a> TemplateContext<'a> {
    /// Of the volume of this name, for a claim that is known.
    pub fn of(claim: &'a Claim, volume: &'a str) -> Self {
        Self {
            volume,
            namespace: &claim.namespace,
            name: &claim.name,
            claim: Some(claim),
        }
    }
}

impl<'a> SecretTemplates<'a> {
    /// Reads the templates of a class.
    pub fn of(class: &'a StorageClass) -> Result<Self, ProvisionRefusal> {
        Self::of_families(class, SecretFamily::ALL)
    }

    /// Those that DeleteVolume may need: whatever is wrong with the others, the volume can be deleted.
    pub fn of_deletion(class: &'a StorageClass) -> Result<Self, ProvisionRefusal> {
        Self::of_families(class, &[SecretFamily::Provisioner])
    }

    fn of_families(class: &'a StorageClass, wanted: &[SecretFamily]) -> Result<Self, ProvisionRefusal> {
        let mut templates = [None; SecretFamily::ALL.len()];
        for (slot, family) in templates.iter_mut().zip(SecretFamily::ALL) {
            if *family != SecretFamily::Default && wanted.contains(family) {
                *slot = template(class, *family)?;
            }
        }
        Ok(Self {
            class: &class.name,
            templates,
            default: template(class, SecretFamily::Default),
        })
    }

    /// The annotations of the claim that the names of the Secrets read.
    pub fn annotations(&self) -> impl Iterator<Item = &'a str> {
        let templates = self.templates.iter().chain(&self.default).flatten();
        templates.flat_map(|template| {
            let tokens = template.name.split("${").skip(1);
            let tokens = tokens.filter_map(|rest| rest.split_once('}'));
            tokens.filter_map(|(token, _)| Tokens::Name.annotation(token))
        })
    }

    /// The template of a family: its own keys, else the default keys, else none.
    fn template(&self, family: SecretFamily) -> Result<Option<SecretTemplate<'a>>, ProvisionRefusal> {
        match self.templates.get(family as usize).copied().flatten() {
            Some(own) => Ok(Some(own)),
            None => self.default.clone(),
        }
    }

    /// Whether the Secret of a family may be this one, whatever the annotations of the claim say.
    pub fn may_name(&self, family: SecretFamily, context: &TemplateContext<'_>, secret: &SecretReference) -> bool {
        let Ok(Some(template)) = self.template(family) else {
            return false;
        };
        let namespace = Tokens::Namespace.expand(template.namespace, context);
        namespace.is_ok_and(|namespace| namespace == secret.namespace)
            && Tokens::Name.is_valid(&secret.name)
            && may_resolve_to(template.name, context, &secret.name)
    }

    /// The Secret of a family, where it has one.
    pub fn resolve(
        &self,
        family: SecretFamily,
        context: &TemplateContext<'_>,
    ) -> Result<Option<SecretReference>, ProvisionRefusal> {
        let Some(template) = self.template(family)? else {
            return Ok(None);
        };
        let resolved = |key, template: &str, tokens: Tokens| {
            let refused = |fault| ProvisionRefusal::SecretTemplate {
                class: self.class.clone(),
                key,
                template: template.into(),
                fault,
            };
            tokens.expand(template, context).map_err(refused)
        };
        let namespace = resolved(template.keys.1, template.namespace, Tokens::Namespace)?;
        let name = resolved(template.keys.0, template.name, Tokens::Name)?;
        Ok(Some(SecretReference { namespace, name }))
    }
}

/// Whether a template of a name resolves to this one with some annotations.
fn may_resolve_to(template: &str, context: &TemplateContext<'_>, name: &str) -> bool {
    let mut parts = template.split("${");
    // What stands before, between and after the annotations.
    let mut fixed = vec![parts.next().unwrap_or_default().to_owned()];
    for part in parts {
        let Some((token, literal)) = part.split_once('}') else {
            return false;
        };
        if Tokens::Name.annotation(token).is_some() {
            fixed.push(literal.to_owned());
            continue;
        }
        let (Some(last), Some(value)) = (fixed.last_mut(), Tokens::Name.value(token, context)) else {
            return false;
        };
        last.push_str(value);
        last.push_str(literal);
    }
    let [first, between @ .., last] = &fixed[..] else {
        return fixed.concat() == name;
    };
    let rest = name.strip_prefix(&**first).and_then(|rest| rest.strip_suffix(&**last));
    // Each where it is found first after the one before.
    let mut between = between.iter();
    let end = rest.and_then(|rest| between.try_fold(rest, |rest, part| Some(rest.split_once(&**part)?.1)));
    end.is_some()
}

/// So much of a resolved template is kept, in bytes.
const MAX_RESOLVED: usize = 300;

/// Which tokens a template may have, and what it must resolve to.
#[derive(Clone, Copy, Debug)]
enum Tokens {
    Name,
    Namespace,
}

impl Tokens {
    const fn words(self) -> &'static str {
        match self {
            Self::Name => "${pv.name}, ${pvc.namespace}, ${pvc.name} and ${pvc.annotations['KEY']}",
            Self::Namespace => "${pv.name} and ${pvc.namespace}",
        }
    }

    const fn what(self) -> &'static str {
        match self {
            Self::Name => "Secret",
            Self::Namespace => "namespace",
        }
    }

    /// A template with the values of its tokens.
    fn expand(self, template: &str, context: &TemplateContext<'_>) -> Result<Box<str>, TemplateFault> {
        let mut resolved = String::with_capacity(template.len());
        let mut rest = template;
        while let Some(at) = rest.find('$') {
            let (literal, tail) = rest.split_at(at);
            resolved.push_str(literal);
            let unknown = |token: &str| TemplateFault::UnknownToken {
                token: token.into(),
                allowed: self.words(),
            };
            let Some((token, after)) = tail.strip_prefix("${").and_then(|tail| tail.split_once('}')) else {
                return Err(unknown(tail));
            };
            let value = self.value(token, context).ok_or_else(|| match self.annotation(token) {
                Some(annotation) => no_annotation(annotation, context.claim),
                None => unknown(token),
            })?;
            resolved.push_str(value);
            // Each token adds at most one annotation, and a name has 253 bytes.
            if resolved.len() > MAX_RESOLVED {
                break;
            }
            rest = after;
        }
        resolved.push_str(rest);
        if self.is_valid(&resolved) {
            return Ok(resolved.into());
        }
        resolved.truncate(resolved.floor_char_boundary(MAX_RESOLVED));
        Err(TemplateFault::InvalidName {
            resolved: resolved.into(),
            what: self.what(),
        })
    }

    fn value<'a>(self, token: &str, context: &TemplateContext<'a>) -> Option<&'a str> {
        match (token, self) {
            ("pv.name", _) => Some(context.volume),
            ("pvc.namespace", _) => Some(context.namespace),
            ("pvc.name", Self::Name) => Some(context.name),
            (token, _) => context.claim?.annotations.get(self.annotation(token)?),
        }
    }

    fn annotation(self, token: &str) -> Option<&str> {
        match self {
            Self::Name => token.strip_prefix("pvc.annotations['")?.strip_suffix("']"),
            Self::Namespace => None,
        }
    }

    /// Names are DNS subdomains and namespaces DNS labels (RFC 1123).
    fn is_valid(self, text: &str) -> bool {
        match self {
            Self::Name => text.len() <= 253 && is_subdomain(text),
            Self::Namespace => text.len() <= 63 && is_label(text),
        }
    }
}

/// Why an annotation that a template reads is not known.
fn no_annotation(annotation: &str, claim: Option<&Claim>) -> TemplateFault {
    match claim.map(|claim| claim.annotations_left_out) {
        None => TemplateFault::ClaimNeeded,
        Some(0) => TemplateFault::AnnotationMissing(annotation.into()),
        Some(left_out) => TemplateFault::AnnotationsTooLarge(left_out),
    }
}

/// The template of a family. A deprecated name may stand beside a current namespace, and the other way round.
fn template(class: &StorageClass, family: SecretFamily) -> Result<Option<SecretTemplate<'_>>, ProvisionRefusal> {
    let keys = family.keys();
    let old = family.deprecated_keys();
    let name = parameter(class, family, keys.0, old.map(|old| old.0))?;
    let namespace = parameter(class, family, keys.1, old.map(|old| old.1))?;
    let missing = |key| ProvisionRefusal::SecretKeyMissing {
        class: class.name.clone(),
        key,
    };
    match (name, namespace) {
        (None, None) => Ok(None),
        (Some(_), None) => Err(missing(keys.1)),
        (None, Some(_)) => Err(missing(keys.0)),
        (Some((name_key, name)), Some((namespace_key, namespace))) => Ok(Some(SecretTemplate {
            keys: (name_key, namespace_key),
            name,
            namespace,
        })),
    }
}

/// The value of a parameter with the key that it stands under.
fn parameter<'a>(
    class: &'a StorageClass,
    family: SecretFamily,
    key: &'static str,
    old: Option<&'static str>,
) -> Result<Option<(&'static str, &'a str)>, ProvisionRefusal> {
    let of = |key: &'static str| class.parameters.get(key).map(|value| (key, value));
    let found = match (of(key), old.and_then(of)) {
        (Some(_), Some(_)) => {
            return Err(ProvisionRefusal::SecretKeysTwice {
                class: class.name.clone(),
                family: family.as_str(),
            });
        }
        (current, old) => current.or(old),
    };
    match found {
        Some((key, "")) => Err(ProvisionRefusal::SecretKeyEmpty {
            class: class.name.clone(),
            key,
        }),
        found => Ok(found),
    }
}
