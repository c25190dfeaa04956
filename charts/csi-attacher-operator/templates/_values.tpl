{{/*
Makes the values complete. A value that is null counts as not given, and values that are kept from an earlier chart lack what is new. What the
templates need gets its default of values.yaml; other values become empty, as Helm takes the default away. Each template begins with this,
because Helm executes the files in an order of its own. extraObjects stay as they are, and global belongs to other charts.
*/}}
{{- define "csi-attacher-operator.values" -}}
{{- $values := .Values }}
{{- include "csi-attacher-operator.dropNulls" (omit $values "extraObjects" "global") }}
{{- range $key, $default := include "csi-attacher-operator.needed" . | fromYaml }}
{{- if kindIs "invalid" (index $values $key) }}
{{- $_ := set $values $key $default }}
{{- else if kindIs "map" $default }}
{{- $section := index $values $key }}
{{- range $inner, $value := $default }}
{{- if not (hasKey $section $inner) }}
{{- $_ := set $section $inner $value }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Removes what is null from a map and from the maps in it. In a securityContext null takes a field of containerSecurityContext away. */}}
{{- define "csi-attacher-operator.dropNulls" -}}
{{- $map := . }}
{{- range $key, $value := $map }}
{{- if kindIs "invalid" $value }}
{{- $_ := unset $map $key }}
{{- else if ne $key "securityContext" }}
{{- range kindIs "slice" $value | ternary $value (list $value) }}
{{- if kindIs "map" . }}
{{- include "csi-attacher-operator.dropNulls" . }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* What the templates need, with the defaults of values.yaml: tests/chart/check compares them. */}}
{{- define "csi-attacher-operator.needed" -}}
image: {repository: csi-attacher-operator, pullPolicy: IfNotPresent}
attacherConfigs: {}
drivers: {}
replicaCount: 2
strategy: {type: RollingUpdate}
podDisruptionBudget: {enabled: true, maxUnavailable: 1, minAvailable: "", unhealthyPodEvictionPolicy: AlwaysAllow}
revisionHistoryLimit: 10
serviceAccount: {create: true, automountServiceAccountToken: false}
rbac: {create: true, aggregateToView: true, provisioning: Auto}
logLevel: info
logFormat: json
port: 8080
extraContainers: []
hostNetwork: false
otel: {headersSecret: {}, certificates: {}}
terminationGracePeriodSeconds: 90
probes:
  liveness: {timeoutSeconds: 5, periodSeconds: 10, failureThreshold: 6}
  readiness: {timeoutSeconds: 5, periodSeconds: 10, failureThreshold: 3}
podAntiAffinity: soft
networkPolicy: {}
serviceMonitor: {}
podMonitor: {}
prometheusRule: {runbookBaseUrl: ""}
dashboards: {grafanaOperator: {}}
test: {image: "busybox:1.37", pullPolicy: IfNotPresent}
{{- end }}
