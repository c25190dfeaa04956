# Makes the bill of materials of the image from what cargo-cyclonedx says of all crates ($crates), what else is linked or copied
# ($system), and, as input, the lines "name version" of the crates which are linked.

def licensed:
  # The tool writes "Apache-2.0/MIT" as it stands in old manifests.
  .licenses |= map(if .expression then .expression |= (gsub("\\s*/\\s*"; " OR ") | gsub(" +"; " ")) else . end);

(split("\n") | map(select(. != ""))) as $linked
| $crates[0] as $all
| ($all.metadata.component | .name + " " + .version) as $program_name
| ([$all.components[], $all.metadata.component] | map(select((.name + " " + .version) as $one | $linked | index($one)))) as $kept
| ($kept | map({key: .["bom-ref"], value: "pkg:cargo/\(.name)@\(.version)"}) | from_entries) as $references
| "pkg:cargo/\($program_name | sub(" "; "@"))" as $program
| "pkg:oci/csi-attacher-operator@\($digest | @uri)?tag=\($version | @uri)" as $image
| ($system | .[0]) as $system
| {
    bomFormat: "CycloneDX", specVersion: "1.5", version: 1, serialNumber: $serial,
    metadata: {
      timestamp: $created,
      tools: $all.metadata.tools,
      properties: $all.metadata.properties,
      component: {
        type: "container", "bom-ref": $image, name: "csi-attacher-operator", version: $version, purl: $image,
        description: $all.metadata.component.description, licenses: [{expression: "Apache-2.0"}],
        hashes: [{alg: "SHA-256", content: ($digest | ltrimstr("sha256:"))}]
      }
    },
    components: (
      [$kept[]
        | {type: "library", "bom-ref": $references[.["bom-ref"]], name, version, description, scope: "required",
           licenses, purl: $references[.["bom-ref"]], hashes, externalReferences, author}
        | if .["bom-ref"] == $program then .type = "application" | .hashes = [{alg: "SHA-256", content: $sum}] else . end
        | licensed | with_entries(select(.value != null))]
      + $system | sort_by(.["bom-ref"])),
    dependencies: (
      [$all.dependencies[] | select($references[.ref])
        | {ref: $references[.ref], dependsOn: ([(.dependsOn // [])[] | $references[.] // empty] | sort)}
        | if .ref == $program then .dependsOn = (.dependsOn + [$system[] | select(.type == "library") | .["bom-ref"]] | sort) else . end]
      + [$system[] | {ref: .["bom-ref"], dependsOn: []}]
      + [{ref: $image, dependsOn: ([$program, ($system[] | select(.type == "data") | .["bom-ref"])] | sort)}]
      | sort_by(.ref))
  }
