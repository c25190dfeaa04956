{{/* What the Deployment selects its pods by. It cannot be changed later. */}}
{{- define "csi-attacher-operator.selector" -}}
app.kubernetes.io/name: csi-attacher-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Labels of all objects. */}}
{{- define "csi-attacher-operator.labels" -}}
{{ include "csi-attacher-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
