//! Compiles `csi.proto` without protoc, and writes the `Debug` of every message that carries credentials.
//!
//! What is redacted is read from the compiled descriptor (option `csi_secret`), never from a list kept by hand: a field that gets the
//! option is covered by the next build.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use heck::{ToSnakeCase as _, ToUpperCamelCase as _};
use protox::prost_reflect::{DescriptorPool, ExtensionDescriptor, FieldDescriptor, MessageDescriptor};

const PROTO: &str = "csi.proto";
const PACKAGE: &str = "csi.v1";
/// Fields without the option which the specification nevertheless forbids to show: mount flags may hold a password.
const ALSO_SENSITIVE: &[&str] = &["csi.v1.VolumeCapability.MountVolume.mount_flags"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={PROTO}");
    let out_dir = PathBuf::from(std::env::var("OUT_DIR")?);

    let mut compiler = protox::Compiler::new(["."])?;
    compiler
        .include_imports(true)
        .include_source_info(true)
        .open_file(PROTO)?;
    let redaction = Redaction::new(&compiler.descriptor_pool())?;

    tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        .build_transport(false)
        .generate_default_stubs(true)
        .btree_map(".")
        .skip_debug(
            redaction
                .messages
                .iter()
                .map(|message| format!(".{}", message.full_name())),
        )
        .compile_fds(compiler.file_descriptor_set())?;

    // These bytes keep the options declared in the proto itself; the typed descriptor set would drop them.
    std::fs::write(
        out_dir.join("csi.descriptor.bin"),
        compiler.encode_file_descriptor_set(),
    )?;
    redaction.write_impls(&out_dir.join("csi.v1.redacted.rs"))?;
    write_debug_table(&compiler.descriptor_pool(), &out_dir.join("csi.v1.debug_table.rs"))?;
    Ok(())
}

/// The messages that hold a sensitive field themselves, in the order of the proto.
struct Redaction {
    secret: ExtensionDescriptor,
    messages: Vec<MessageDescriptor>,
}

impl Redaction {
    fn new(pool: &DescriptorPool) -> Result<Self, Box<dyn Error>> {
        let secret = pool
            .get_extension_by_name("csi.v1.csi_secret")
            .ok_or("the proto does not declare the option csi_secret")?;
        let mut redaction = Self {
            secret,
            messages: Vec::new(),
        };
        redaction.messages = own_messages(pool)
            .filter(|message| message.fields().any(|field| redaction.is_sensitive(&field)))
            .collect();
        Ok(redaction)
    }

    fn is_sensitive(&self, field: &FieldDescriptor) -> bool {
        ALSO_SENSITIVE.contains(&field.full_name())
            || field.options().get_extension(&self.secret).as_bool() == Some(true)
    }

    /// Writes one `impl Debug` for each message, and the list of their names.
    ///
    /// A field whose name is a Rust keyword, or a sensitive field that is neither a map, a list nor a text, does not compile: nothing is
    /// left out silently.
    fn write_impls(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        let mut code = String::new();
        for message in &self.messages {
            let rust = rust_path(message);
            writeln!(code, "impl ::core::fmt::Debug for {rust} {{")?;
            writeln!(
                code,
                "    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{"
            )?;
            writeln!(
                code,
                "        f.debug_struct(\"{}\")",
                message.name().to_upper_camel_case()
            )?;
            for field in message.fields().filter(|field| field.containing_oneof().is_none()) {
                let name = field.name().to_snake_case();
                let value = if self.is_sensitive(&field) {
                    format!("crate::redact::Redacted(self.{name}.len())")
                } else {
                    format!("self.{name}")
                };
                writeln!(code, "            .field(\"{name}\", &{value})")?;
            }
            for oneof in message.oneofs() {
                if oneof.fields().any(|field| self.is_sensitive(&field)) {
                    return Err(format!(
                        "{} holds a sensitive field: redaction of oneofs is not written yet",
                        oneof.full_name()
                    )
                    .into());
                }
                writeln!(
                    code,
                    "            .field(\"{0}\", &self.{0})",
                    oneof.name().to_snake_case()
                )?;
            }
            writeln!(code, "            .finish()\n    }}\n}}\n")?;
        }
        writeln!(
            code,
            "/// Full names of the messages whose `Debug` hides sensitive fields, in the order of the proto."
        )?;
        writeln!(code, "pub const REDACTED_MESSAGES: &[&str] = &[")?;
        for message in &self.messages {
            writeln!(code, "    \"{}\",", message.full_name())?;
        }
        writeln!(code, "];")?;
        Ok(std::fs::write(path, code)?)
    }
}

/// Writes, for tests, a table from each message's name to a function that decodes it and prints its `Debug`, so that no type can be
/// forgotten: alone, and wrapped in the request type of the transport.
fn write_debug_table(pool: &DescriptorPool, path: &Path) -> Result<(), Box<dyn Error>> {
    let mut code = String::from("pub(super) const DEBUG_TABLE: &[(&str, DebugOf)] = &[\n");
    for message in own_messages(pool) {
        writeln!(
            code,
            "    (\"{}\", debug_of::<super::v1::{}>),",
            message.full_name(),
            rust_path(&message)
        )?;
    }
    code.push_str("];\n");
    Ok(std::fs::write(path, code)?)
}

/// All messages of the package, nested ones included, without the entry types that stand for maps.
fn own_messages(pool: &DescriptorPool) -> impl Iterator<Item = MessageDescriptor> {
    pool.all_messages()
        .filter(|message| message.package_name() == PACKAGE && !message.is_map_entry())
}

/// The path of the generated type below the module of the package: nested messages live in a module named after their parent.
fn rust_path(message: &MessageDescriptor) -> String {
    let mut path = message.name().to_upper_camel_case();
    let mut parent = message.parent_message();
    while let Some(outer) = parent {
        path = format!("{}::{path}", outer.name().to_snake_case());
        parent = outer.parent_message();
    }
    path
}
