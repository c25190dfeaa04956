{{/*
Fails on a live cluster whose CRD is missing or too old, or may be deleted by an upgrade, and says how to upgrade it: Helm installs what
is in crds/ only when it is missing.
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
{{- with include "csi-attacher-operator.lacking" (dict "path" "" "wanted" $wanted "found" $found) | trim }}
{{- $fields := splitList "\n" . }}
{{- fail (printf "the CRD %s in the cluster is too old for this chart: it does not have %s. First %s" $name (join ", " (slice $fields 0 (min 3 (len $fields)))) $advice) }}
{{- end }}
{{- $isKept := eq (get ($live.metadata.annotations | default dict) "helm.sh/resource-policy") "keep" }}
{{- /* Whether an earlier revision has it cannot be seen: who replaces the CRD by a file takes away whose it is. */}}
{{- if and .Release.IsUpgrade (not $isKept) }}
{{- fail (printf "the CRD %s does not have the annotation helm.sh/resource-policy: keep. If an earlier revision of the release has the CRD, this upgrade would delete it, and with it every AttacherConfig. First %s; to leave its schema as it is, run instead: kubectl annotate crd %s helm.sh/resource-policy=keep" $name $advice $name) }}
{{- end }}
{{- else if and .Release.IsUpgrade (lookup "v1" "Namespace" "" "default") }}
{{- fail (printf "the CRD %s is missing, and Helm does not install it with an upgrade. First %s" $name $advice) }}
{{- end }}
{{- end }}

{{/*
What the schema `wanted` has, or takes, and `found` has not, or refuses: the paths of these fields, one on each line. Rules, patterns and
types have no order, so that nobody can say which of two is the newer one.
*/}}
{{- define "csi-attacher-operator.lacking" -}}
{{- $path := .path }}
{{- $wanted := .wanted }}
{{- $found := .found }}
{{- $there := $found.properties | default dict }}
{{- range $name, $schema := $wanted.properties | default dict }}
{{- $below := empty $path | ternary $name (printf "%s.%s" $path $name) }}
{{- if hasKey $there $name }}
{{- include "csi-attacher-operator.lacking" (dict "path" $below "wanted" $schema "found" (get $there $name)) }}
{{- else }}
{{- printf "%s\n" $below }}
{{- end }}
{{- end }}
{{- if kindIs "map" $wanted.items }}
{{- include "csi-attacher-operator.lacking" (dict "path" (printf "%s[]" $path) "wanted" $wanted.items "found" ($found.items | default dict)) }}
{{- end }}
{{- $refused := list }}
{{- range $limit, $sign := dict "maximum" 1 "maxItems" 1 "maxLength" 1 "minimum" -1 "minItems" -1 "minLength" -1 }}
{{- if and (hasKey $found $limit) (or (not (hasKey $wanted $limit)) (lt (mulf $sign (get $found $limit)) (mulf $sign (get $wanted $limit)))) }}
{{- $refused = append $refused $limit }}
{{- end }}
{{- end }}
{{- /* Without an enum any word is taken, also the empty one. */}}
{{- range $wanted.enum | default (list "") }}
{{- if not (has . ($found.enum | default (list .))) }}
{{- $refused = append $refused "enum" }}
{{- end }}
{{- end }}
{{- range $found.required | default list }}
{{- if not (has . ($wanted.required | default list)) }}
{{- $refused = append $refused "required" }}
{{- end }}
{{- end }}
{{- range uniq $refused }}
{{- printf "%s with this chart's %s\n" $path . }}
{{- end }}
{{- end }}
