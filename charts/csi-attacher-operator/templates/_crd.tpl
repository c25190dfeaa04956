{{/*
Fails on a live cluster whose CRD is missing or too old, and says how to upgrade it: Helm installs what is in crds/ only when it is missing.
Without a cluster (`helm template`, Argo CD) nothing can be looked up, and nothing fails.
*/}}
{{- define "csi-attacher-operator.checkCrd" -}}
{{- $removed := get .Values "crds" | default dict }}
{{- if or (eq (get $removed "enabled" | toString) "false") (eq (get $removed "keep" | toString) "false") }}
{{- fail "crds was removed: Helm installs the CRD when it is missing (--skip-crds leaves it out) and never deletes it; charts/csi-attacher-operator-crds upgrades it (docs/operate/UPGRADE.md)" }}
{{- end }}
{{- $name := "attacherconfigs.attacher.csi.dev" }}
{{- $advice := "install or upgrade charts/csi-attacher-operator-crds with --take-ownership (and --force-conflicts if kubectl installed it), or `kubectl apply --server-side --force-conflicts -f` the file in crds/ of this chart, and repeat the command (docs/operate/UPGRADE.md)" }}
{{- $live := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $name }}
{{- if $live }}
{{- $file := required "crds/ is missing: the chart was packed without it" (.Files.Get "crds/attacher.csi.dev_attacherconfigs.yaml") | fromYaml }}
{{- $wanted := (first $file.spec.versions).schema.openAPIV3Schema }}
{{- $found := dict }}
{{- range $live.spec.versions }}
{{- if eq .name (first $file.spec.versions).name }}
{{- $found = .schema.openAPIV3Schema }}
{{- end }}
{{- end }}
{{- with include "csi-attacher-operator.missingFields" (dict "path" "" "wanted" $wanted "found" $found) | trim }}
{{- $fields := splitList "\n" . }}
{{- fail (printf "the CRD %s in the cluster is too old for this chart: it does not have %s. First %s" $name (join ", " (slice $fields 0 (min 3 (len $fields)))) $advice) }}
{{- end }}
{{- $isKept := eq (get ($live.metadata.annotations | default dict) "helm.sh/resource-policy") "keep" }}
{{- if and .Release.IsUpgrade (include "csi-attacher-operator.ours" (list . $live.metadata)) (not $isKept) }}
{{- fail (printf "this upgrade would delete the CRD %s, and with it every AttacherConfig, because an earlier revision has it with crds.keep=false. First run: kubectl annotate crd %s helm.sh/resource-policy=keep" $name $name) }}
{{- end }}
{{- else if and .Release.IsUpgrade (lookup "v1" "Namespace" "" "default") }}
{{- fail (printf "the CRD %s is missing, and Helm does not install it with an upgrade. First %s" $name $advice) }}
{{- end }}
{{- end }}

{{/* The paths of the fields of a schema that another one does not have, one on each line. */}}
{{- define "csi-attacher-operator.missingFields" -}}
{{- $root := . }}
{{- $there := $root.found.properties | default dict }}
{{- range $name, $schema := $root.wanted.properties | default dict }}
{{- $path := printf "%s%s" (empty $root.path | ternary "" (printf "%s." $root.path)) $name }}
{{- if hasKey $there $name }}
{{- include "csi-attacher-operator.missingFields" (dict "path" $path "wanted" $schema "found" (get $there $name)) }}
{{- else }}
{{- printf "%s\n" $path }}
{{- end }}
{{- end }}
{{- if kindIs "map" $root.wanted.items }}
{{- include "csi-attacher-operator.missingFields" (dict "path" (printf "%s[]" $root.path) "wanted" $root.wanted.items "found" ($root.found.items | default dict)) }}
{{- end }}
{{- end }}
