{{- define "csi-attacher-operator.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimAll "-." }}
{{- end }}

{{/* The name of all objects. Ten characters are left for what is put behind it. A release may have points in its name and begin with a digit, a Service may not. */}}
{{- define "csi-attacher-operator.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name }}
{{- $full := .Values.fullnameOverride }}
{{- if not $full }}
{{- $full = contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) | replace "." "-" }}
{{- $full = regexReplaceAll "^([0-9])" $full "csi-${1}" }}
{{- end }}
{{- $full | trunc 53 | trimAll "-" }}
{{- end }}

{{/* What the Deployment selects its pods by. It cannot be changed later. */}}
{{- define "csi-attacher-operator.selector" -}}
app.kubernetes.io/name: {{ include "csi-attacher-operator.name" . | toYaml }}
app.kubernetes.io/instance: {{ .Release.Name | toYaml }}
{{- end }}

{{/* The port of metrics and probes. */}}
{{- define "csi-attacher-operator.port" -}}
{{- .Values.port | int }}
{{- end }}

{{/* Labels of the pod of `helm test`. */}}
{{- define "csi-attacher-operator.testSelector" -}}
app.kubernetes.io/name: {{ include "csi-attacher-operator.name" . | trunc 58 | trimAll "-." }}-test
app.kubernetes.io/instance: {{ .Release.Name | toYaml }}
{{- end }}

{{/* A text as a label has it: the version of a build may have a "+", and be longer. */}}
{{- define "csi-attacher-operator.labelValue" -}}
{{- . | replace "+" "_" | trunc 63 | trimAll "-_." }}
{{- end }}

{{/* Labels of all objects. */}}
{{- define "csi-attacher-operator.labels" -}}
{{- include "csi-attacher-operator.labelsAnd" (list . dict) }}
{{- end }}

{{/* The same and those of one object, each key once: first what selectors name, then those of the object, then commonLabels. */}}
{{- define "csi-attacher-operator.labelsAnd" -}}
{{- $root := first . }}
{{- $chart := dict "app.kubernetes.io/version" (include "csi-attacher-operator.labelValue" $root.Chart.AppVersion)
  "app.kubernetes.io/managed-by" $root.Release.Service
  "helm.sh/chart" (include "csi-attacher-operator.labelValue" (printf "%s-%s" $root.Chart.Name $root.Chart.Version)) }}
{{- $labels := dict }}
{{- range list $chart $root.Values.commonLabels (last .) (include "csi-attacher-operator.selector" $root | fromYaml) }}
{{- range $key, $value := . }}
{{- $_ := set $labels $key $value }}
{{- end }}
{{- end }}
{{- toYaml $labels }}
{{- end }}

{{/*
Annotations of the pods. Cluster Autoscaler removes no node whose pods have an emptyDir, unless they name it as one without data: those of the
sockets. A hostPath is not named, as the pods need its node.
*/}}
{{- define "csi-attacher-operator.podAnnotations" -}}
{{- $annotations := dict }}
{{- $sockets := list }}
{{- range $name, $driver := .Values.drivers }}
{{- if $driver.container }}
{{- $sockets = append $sockets (printf "socket-%s" $name) }}
{{- end }}
{{- end }}
{{- with $sockets }}
{{- $_ := set $annotations "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes" (join "," .) }}
{{- end }}
{{- /* Not merged, which would take an empty text for nothing. */}}
{{- range $key, $value := .Values.podAnnotations }}
{{- $_ := set $annotations $key $value }}
{{- end }}
{{- toYaml $annotations }}
{{- end }}

{{- define "csi-attacher-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "csi-attacher-operator.fullname" .) }}
{{- else }}
{{- .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{/* subjects of all bindings */}}
{{- define "csi-attacher-operator.subjects" -}}
- kind: ServiceAccount
  name: {{ include "csi-attacher-operator.serviceAccountName" . | toYaml }}
  namespace: {{ .Release.Namespace | toYaml }}
{{- end }}

{{/* A tag has no "+", which the version of a build may have: image/build writes "_" as well. */}}
{{- define "csi-attacher-operator.image" -}}
{{- with .Values.image }}
{{- with .registry }}{{ . }}/{{ end }}{{ .repository }}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default ($.Chart.AppVersion | replace "+" "_") }}{{ end }}
{{- end }}
{{- end }}

{{/* Where the operator finds a driver of the values. */}}
{{- define "csi-attacher-operator.endpoint" -}}
{{- if .driver.network -}}
https://{{ .driver.network.address }}
{{- else -}}
unix:///csi/{{ .name }}/{{ .driver.socket | default "csi.sock" }}
{{- end }}
{{- end }}

{{/* All AttacherConfigs as YAML: a map from names to specs. */}}
{{- define "csi-attacher-operator.configs" -}}
{{- $configs := dict }}
{{- $defaults := deepCopy (.Values.attacherConfigDefaults | default dict) }}
{{- if $defaults.publishSecrets }}
{{- fail "attacherConfigDefaults.publishSecrets: set it for each driver, in drivers.NAME.config or attacherConfigs.NAME" }}
{{- end }}
{{- /* Defaults of provisioning are for those that have the section: else an upgrade would start it beside a sidecar that provisions. */}}
{{- $provisioning := $defaults.provisioning | default dict }}
{{- $defaults = omit $defaults "provisioning" }}
{{- with .Values.leaderElection }}
{{- $_ := set $defaults "leaderElection" (mergeOverwrite (deepCopy .) ($defaults.leaderElection | default dict)) }}
{{- end }}
{{- range $name, $spec := .Values.attacherConfigs }}
{{- $own := deepCopy $defaults }}
{{- $given := $spec }}
{{- if kindIs "map" (get $spec "provisioning") }}
{{- $_ := set $own "provisioning" (deepCopy $provisioning) }}
{{- else }}
{{- $given = omit $spec "provisioning" }}
{{- end }}
{{- $_ := set $configs $name (mergeOverwrite $own $given) }}
{{- end }}
{{- range $name, $driver := .Values.drivers }}
{{- if eq $name "operator" }}
{{- fail "drivers.operator: the pod already has a container of this name; give the driver another one" }}
{{- end }}
{{- if hasKey $configs $name }}
{{- fail (printf "attacherConfigs.%s and drivers.%s would create the same AttacherConfig: put the settings into drivers.%s.config" $name $name $name) }}
{{- end }}
{{- $spec := dict "endpoint" (include "csi-attacher-operator.endpoint" (dict "name" $name "driver" $driver)) }}
{{- with $driver.driverName }}
{{- $_ := set $spec "driverName" . }}
{{- end }}
{{- with $driver.network }}
{{- $tls := dict "secretRef" (dict "namespace" (.tlsSecret.namespace | default $.Release.Namespace) "name" .tlsSecret.name) }}
{{- with .serverName }}
{{- $_ := set $tls "serverName" . }}
{{- end }}
{{- $_ := set $spec "tls" $tls }}
{{- end }}
{{- $own := deepCopy $defaults }}
{{- $given := $driver.config | default dict }}
{{- if kindIs "map" (get $given "provisioning") }}
{{- $_ := set $own "provisioning" (deepCopy $provisioning) }}
{{- else }}
{{- $given = omit $given "provisioning" }}
{{- end }}
{{- $_ := set $configs $name (mergeOverwrite $own $given $spec) }}
{{- end }}
{{- range $name, $spec := $configs }}
{{- if and (hasKey $spec "provisioning") (not (get $spec "driverName")) }}
{{- $where := ternary "drivers" "attacherConfigs" (hasKey $.Values.drivers $name) }}
{{- fail (printf "%s.%s has provisioning without driverName: set %s.%s.driverName" $where $name $where $name) }}
{{- end }}
{{- end }}
{{- toYaml $configs }}
{{- end }}

{{/* The Secrets that the operator may read as YAML: a map from namespaces to lists of names, which are empty where it may read all. */}}
{{- define "csi-attacher-operator.secrets" -}}
{{- if get .Values "secretAccess" }}
{{- fail "secretAccess was removed: name the Secrets of each driver in drivers.NAME.config.publishSecrets or attacherConfigs.NAME.publishSecrets (docs/operate/UPGRADE.md)" }}
{{- end }}
{{- $secrets := dict }}
{{- $whole := list }}
{{- range include "csi-attacher-operator.configs" . | fromYaml }}
{{- $listed := .publishSecrets | default list }}
{{- range dig "provisioning" "secrets" list . }}
{{- if ne .namespace "*" }}
{{- $listed = append $listed . }}
{{- end }}
{{- end }}
{{- range $listed }}
{{- if .names }}
{{- $_ := set $secrets .namespace (concat (get $secrets .namespace | default list) .names | uniq | sortAlpha) }}
{{- else }}
{{- $whole = append $whole .namespace }}
{{- end }}
{{- end }}
{{- with dig "tls" "secretRef" (dict) . }}
{{- $_ := set $secrets .namespace (append (get $secrets .namespace | default list) .name | uniq | sortAlpha) }}
{{- end }}
{{- end }}
{{- range $whole }}
{{- $_ := set $secrets . list }}
{{- end }}
{{- toYaml $secrets }}
{{- end }}

{{/* The AttacherConfigs of the release as they are in the cluster before this revision, as YAML: a map from names. Without a cluster there is none. */}}
{{- define "csi-attacher-operator.live" -}}
{{- $live := dict }}
{{- if .Capabilities.APIVersions.Has "attacher.csi.dev/v1alpha1/AttacherConfig" }}
{{- range (lookup "attacher.csi.dev/v1alpha1" "AttacherConfig" "" "").items }}
{{- $annotations := .metadata.annotations | default dict }}
{{- if and (eq (get $annotations "meta.helm.sh/release-name") $.Release.Name) (eq (get $annotations "meta.helm.sh/release-namespace") $.Release.Namespace) }}
{{- $_ := set $live .metadata.name (dict "annotations" $annotations "spec" .spec) }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $live }}
{{- end }}

{{/*
Each `spec.provisioning` as YAML: a map from names of AttacherConfigs to `values`, as it will be, and `live`, as it is before this revision. Both
have rights: Helm changes the roles before the AttacherConfigs, and the operator then takes its markers off the claims.
*/}}
{{- define "csi-attacher-operator.provisioning" -}}
{{- $sections := dict }}
{{- range $name, $spec := include "csi-attacher-operator.configs" . | fromYaml }}
{{- if hasKey $spec "provisioning" }}
{{- $_ := set $sections $name (dict "values" $spec.provisioning) }}
{{- end }}
{{- end }}
{{- range $name, $object := include "csi-attacher-operator.live" . | fromYaml }}
{{- if kindIs "map" (get $object.spec "provisioning") }}
{{- $_ := set $sections $name (set (get $sections $name | default dict) "live" $object.spec.provisioning) }}
{{- end }}
{{- end }}
{{- toYaml $sections }}
{{- end }}

{{/*
Whether rules for provisioning are made: `true`, or nothing.
*/}}
{{- define "csi-attacher-operator.provisions" -}}
{{- $wanted := .Values.rbac.provisioning }}
{{- if or (eq $wanted "Enabled") (and (eq $wanted "Auto") (include "csi-attacher-operator.provisioning" . | fromYaml)) }}true{{ end }}
{{- end }}

{{/*
Whether volumes of Released PersistentVolumes may be deleted: `true`, or nothing.
*/}}
{{- define "csi-attacher-operator.deletes" -}}
{{- $wanted := eq .Values.rbac.provisioning "Enabled" }}
{{- range include "csi-attacher-operator.provisioning" . | fromYaml }}
{{- range . }}
{{- if ne (get . "deletion") "Hold" }}
{{- $wanted = true }}
{{- end }}
{{- end }}
{{- end }}
{{- if $wanted }}true{{ end }}
{{- end }}

{{/*
The namespaces with Leases as YAML: a map from their names to `any`, whether drivers of any name may have a Lease there, and
`names` of Leases. The operator's own ones are in the namespace of the release, those of sidecars in the others.
*/}}
{{- define "csi-attacher-operator.leaseNamespaces" -}}
{{- $nothing := dict "any" false "names" list }}
{{- $namespaces := dict .Release.Namespace (dict "any" true "names" list) }}
{{- $provisioning := include "csi-attacher-operator.provisioning" . | fromYaml }}
{{- range $name, $_ := include "csi-attacher-operator.configs" . | fromYaml }}
{{- $driver := .driverName | default "" }}
{{- $lease := regexReplaceAll "[^a-z0-9-]" (lower $driver) "-" | printf "external-attacher-leader-%s" }}
{{- if hasSuffix "-" $lease }}
{{- $lease = printf "%sX" $lease }}
{{- end }}
{{- $provisioner := regexReplaceAll "[^a-z0-9-]" (lower $driver) "-" }}
{{- if hasSuffix "-" $provisioner }}
{{- $provisioner = printf "%sX" $provisioner }}
{{- end }}
{{- range append (dig "leaderElection" "sidecarNamespaces" list .) (dig "leaderElection" "namespace" "" .) | compact }}
{{- $known := get $namespaces . | default $nothing }}
{{- $names := append $known.names $lease }}
{{- if hasKey $provisioning $name }}
{{- $names = append $names $provisioner }}
{{- end }}
{{- $names = $names | uniq | sortAlpha }}
{{- $_ := set $namespaces . (dict "any" (or $known.any (not $driver)) "names" $names) }}
{{- end }}
{{- end }}
{{- toYaml $namespaces }}
{{- end }}

{{/* A value as the text of a variable. Helm reads whole numbers of a million and more as 1e+06. */}}
{{- define "csi-attacher-operator.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{/* Variables of the operator for traces as YAML: a list as in a container, in which `of` is the value of the chart that sets the variable. */}}
{{- define "csi-attacher-operator.otel" -}}
{{- $variables := list }}
{{- with .Values.otel }}
{{- $pairs := list }}
{{- range $key, $value := .resourceAttributes }}
{{- /* Percent-encoded, where a space is no plus, but for references $(NAME), which the kubelet fills in; it takes $$(NAME) for the text $(NAME). */}}
{{- $text := include "csi-attacher-operator.text" $value | urlquery | replace "+" "%20" }}
{{- $text = regexReplaceAll "%24%28([A-Za-z_][A-Za-z0-9_.-]*)%29" $text "$$(${1})" | replace "%24$(" "%24%28" }}
{{- $pairs = append $pairs (printf "%s=%s" ($key | urlquery | replace "+" "%20") $text) }}
{{- end }}
{{- $plain := dict "OTEL_SDK_DISABLED" (list "disabled" (empty .disabled | ternary "" "true"))
  "OTEL_EXPORTER_OTLP_ENDPOINT" (list "endpoint" .endpoint)
  "OTEL_EXPORTER_OTLP_PROTOCOL" (list "protocol" (.protocol | default (empty .endpoint | ternary "" "grpc")))
  "OTEL_EXPORTER_OTLP_COMPRESSION" (list "compression" .compression) "OTEL_EXPORTER_OTLP_TIMEOUT" (list "timeout" .timeout)
  "OTEL_TRACES_SAMPLER" (list "sampler" .sampler) "OTEL_TRACES_SAMPLER_ARG" (list "samplerArg" .samplerArg)
  "OTEL_SERVICE_NAME" (list "serviceName" .serviceName) "OTEL_RESOURCE_ATTRIBUTES" (list "resourceAttributes" (join "," $pairs)) }}
{{- $files := dict "ca" "CERTIFICATE" "clientCertificate" "CLIENT_CERTIFICATE" "clientKey" "CLIENT_KEY" }}
{{- range $value, $suffix := empty .certificates.secretName | ternary dict $files }}
{{- with get $.Values.otel.certificates $value }}
{{- $_ := set $plain (printf "OTEL_EXPORTER_OTLP_%s" $suffix) (list (printf "certificates.%s" $value) (printf "/etc/otel/%s" .)) }}
{{- end }}
{{- end }}
{{- range $name, $from := $plain }}
{{- with last $from }}
{{- $variables = append $variables (dict "of" (first $from | printf "otel.%s") "name" $name "value" (include "csi-attacher-operator.text" .)) }}
{{- end }}
{{- end }}
{{- if .headersSecret.name }}
{{- /* Optional: the kubelet starts no container whose Secret is not there, and no attach waits for a collector. */}}
{{- $key := dict "name" .headersSecret.name "key" (.headersSecret.key | default "headers") "optional" true }}
{{- $variables = append $variables (dict "of" "otel.headersSecret" "name" "OTEL_EXPORTER_OTLP_HEADERS" "valueFrom" (dict "secretKeyRef" $key)) }}
{{- end }}
{{- end }}
{{- toYaml $variables }}
{{- end }}

{{/* The value that a flag has by extraArgs, or its default. */}}
{{- define "csi-attacher-operator.flag" -}}
{{- $value := .default }}
{{- $flag := printf "--%s=" .name }}
{{- range .root.Values.extraArgs }}
{{- if hasPrefix $flag . }}
{{- $value = trimPrefix $flag . }}
{{- end }}
{{- end }}
{{- $value }}
{{- end }}

{{/* The path of the metrics, for monitors. */}}
{{- define "csi-attacher-operator.metricsPath" -}}
{{- include "csi-attacher-operator.flag" (dict "root" . "name" "metrics-path" "default" "/metrics") }}
{{- end }}

{{/* Refuses a pod whose operator is killed before its calls end. The operator refuses a duration that cannot be read. */}}
{{- define "csi-attacher-operator.checkGracePeriod" -}}
{{- $shutdown := include "csi-attacher-operator.flag" (dict "root" . "name" "shutdown-grace-period" "default" "75s") }}
{{- $seconds := toDate "2006-01-02T15:04:05Z07:00" "1970-01-01T00:00:00Z" | dateModify $shutdown | unixEpoch | int64 }}
{{- $pod := int64 .Values.terminationGracePeriodSeconds }}
{{- if le $pod $seconds }}
{{- fail (printf "terminationGracePeriodSeconds is %d, but the operator may take %s to end (--shutdown-grace-period), and would be killed before: set terminationGracePeriodSeconds to more than %d, or a shorter --shutdown-grace-period in extraArgs" $pod $shutdown $seconds) }}
{{- end }}
{{- end }}

{{/* Whether a manifest of the Prometheus Operator is rendered: "true" or nothing. Takes the values of it, and the root. */}}
{{- define "csi-attacher-operator.monitoring" -}}
{{- if and .values.enabled (or .values.force (.root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind))) -}}
true
{{- end }}
{{- end }}

{{/* The ports where the drivers' liveness probes answer as YAML: a map from the names of drivers. Containers of a pod share one network. */}}
{{- define "csi-attacher-operator.probePorts" -}}
{{- $taken := list (include "csi-attacher-operator.port" . | int) }}
{{- $containers := .Values.extraContainers }}
{{- range .Values.drivers }}
{{- with .container }}
{{- $containers = append $containers . }}
{{- end }}
{{- with .livenessProbe }}
{{- $taken = append $taken (int .port) }}
{{- end }}
{{- end }}
{{- range $containers }}
{{- range .ports }}
{{- $taken = append $taken (int .containerPort) }}
{{- end }}
{{- end }}
{{- $ports := dict }}
{{- range $name, $driver := .Values.drivers }}
{{- with $driver.livenessProbe }}
{{- $port := int .port }}
{{- range $free := untilStep 9808 10808 1 }}
{{- if and (not $port) (not (has $free $taken)) }}
{{- $port = $free }}
{{- $taken = append $taken $free }}
{{- end }}
{{- end }}
{{- $_ := set $ports $name $port }}
{{- end }}
{{- end }}
{{- toYaml $ports }}
{{- end }}

{{/* Refuses names of Services where the pods ask the resolver of the node, which does not know them. hostNetwork does that to ClusterFirst as well. */}}
{{- define "csi-attacher-operator.checkDns" -}}
{{- $policy := get .Values "dnsPolicy" }}
{{- if and (or (eq $policy "Default") (and .Values.hostNetwork (eq $policy "ClusterFirst"))) (not (dig "nameservers" list (.Values.dnsConfig | default dict))) }}
{{- $known := list }}
{{- range .Values.hostAliases }}
{{- $known = concat $known .hostnames }}
{{- end }}
{{- range $name, $spec := include "csi-attacher-operator.configs" . | fromYaml }}
{{- $host := regexReplaceAll "^https?://([^/]*@)?([^/:]*).*" $spec.endpoint "${2}" }}
{{- if and (regexMatch "^[^/:.]+\\.[^/:.]+\\.svc(\\.cluster\\.local)?$" $host) (not (has $host $known)) (not $spec.suspend) }}
{{- $of := printf (hasKey $.Values.drivers $name | ternary "drivers.%s.network.address" "attacherConfigs.%s.endpoint") $name }}
{{- fail (printf "%s is at %s, the name of a Service, which the resolver of the node does not know: remove dnsPolicy %s, or name the DNS of the cluster in dnsConfig.nameservers, or the address of the Service in hostAliases" $of $host $policy) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The items of a list in the values, as `distinct` takes them: the name of each is what it has in the fields `by`. */}}
{{- define "csi-attacher-operator.items" -}}
{{- $items := list }}
{{- range $index, $item := .list }}
{{- $names := list }}
{{- range $.by }}
{{- $names = append $names (get $item .) }}
{{- end }}
{{- $items = append $items (dict "of" (printf "%s[%d]" $.of $index) "name" (join ", " $names)) }}
{{- end }}
{{- toYaml $items }}
{{- end }}

{{/* Refuses a list in which a name is there twice. Its items have a `name`, and `of` says where each is from. */}}
{{- define "csi-attacher-operator.distinct" -}}
{{- $names := dict }}
{{- $message := last . }}
{{- range first . }}
{{- if hasKey $names .name }}
{{- fail (printf $message (get $names .name) .of .name) }}
{{- end }}
{{- $_ := set $names .name .of }}
{{- end }}
{{- end }}

{{/* Refuses entries of the pod with one key, which the API server or server-side apply refuses in the middle of an upgrade. */}}
{{- define "csi-attacher-operator.checkPod" -}}
{{- $secrets := include "csi-attacher-operator.items" (dict "of" "imagePullSecrets" "by" (list "name") "list" .Values.imagePullSecrets) | fromYamlArray }}
{{- include "csi-attacher-operator.distinct" (list $secrets "%s and %s are both the Secret %s: remove one of them") }}
{{- $hosts := include "csi-attacher-operator.items" (dict "of" "hostAliases" "by" (list "ip") "list" .Values.hostAliases) | fromYamlArray }}
{{- include "csi-attacher-operator.distinct" (list $hosts "%s and %s both have the ip %s: put the hostnames of both into one of them") }}
{{- $spread := dict "of" "topologySpreadConstraints" "by" (list "topologyKey" "whenUnsatisfiable") "list" .Values.topologySpreadConstraints }}
{{- $spread = include "csi-attacher-operator.items" $spread | fromYamlArray }}
{{- include "csi-attacher-operator.distinct" (list $spread "%s and %s are both for %s: remove one of them") }}
{{- include "csi-attacher-operator.checkVolumes" . }}
{{- end }}

{{/* Refuses two volumes of one name, which the API server refuses. */}}
{{- define "csi-attacher-operator.checkVolumes" -}}
{{- $volumes := list }}
{{- if not .Values.serviceAccount.automountServiceAccountToken }}
{{- $volumes = append $volumes (dict "of" "the token of the ServiceAccount" "name" "service-account-token") }}
{{- end }}
{{- if .Values.otel.certificates.secretName }}
{{- $volumes = append $volumes (dict "of" "otel.certificates" "name" "otel-certificates") }}
{{- end }}
{{- $lists := dict "volumes" .Values.volumes }}
{{- range $name, $driver := .Values.drivers }}
{{- if not $driver.network }}
{{- $volumes = append $volumes (dict "of" (printf "drivers.%s" $name) "name" (printf "socket-%s" $name)) }}
{{- end }}
{{- $_ := set $lists (printf "drivers.%s.volumes" $name) $driver.volumes }}
{{- end }}
{{- range $of, $list := $lists }}
{{- $volumes = concat $volumes (include "csi-attacher-operator.items" (dict "of" $of "by" (list "name") "list" $list) | fromYamlArray) }}
{{- end }}
{{- include "csi-attacher-operator.distinct" (list $volumes "%s and %s are both a volume of the name %s, and the volumes of all drivers are in one pod: give one of them another name, or list it once") }}
{{- end }}

{{/*
Refuses flags that would win over what the chart sets, and a name that all replicas share: a new pod would take the Leases of one that
still works for its own, and renew them.
*/}}
{{- define "csi-attacher-operator.checkFlags" -}}
{{- $own := dict "http-endpoint" "port" "log-level" "logLevel" "log-format" "logFormat" }}
{{- range .Values.extraArgs }}
{{- $flag := trimPrefix "--" . | splitList "=" | first }}
{{- with get $own $flag }}
{{- fail (printf "extraArgs: --%s is set by the chart; set the value %s instead" $flag .) }}
{{- end }}
{{- /* Kubernetes replaces no variable behind an even number of `$`. */}}
{{- if and (eq $flag "identity") (not (regexMatch "[^$]([$][$])*[$][(]POD_(NAME|UID)[)]" .)) }}
{{- fail "extraArgs: --identity would be the name of all replicas, of which each must have one of its own: leave it out, so that it is that of the pod, or let it have $(POD_NAME) or $(POD_UID) in it" }}
{{- end }}
{{- end }}
{{- end }}

{{/* The variables of the operator's container, as `distinct` takes them. */}}
{{- define "csi-attacher-operator.variables" -}}
{{- $variables := list (dict "of" "logLevel" "name" "LOG_LEVEL") (dict "of" "logFormat" "name" "LOG_FORMAT") }}
{{- range list "POD_NAME" "POD_NAMESPACE" "POD_UID" "NODE_NAME" }}
{{- $variables = append $variables (dict "of" "the chart" "name" .) }}
{{- end }}
{{- $variables = concat $variables (include "csi-attacher-operator.otel" . | fromYamlArray) }}
{{- $extra := dict "of" "extraEnv" "by" (list "name") "list" .Values.extraEnv }}
{{- concat $variables (include "csi-attacher-operator.items" $extra | fromYamlArray) | toYaml }}
{{- end }}

{{/*
The containers of the pod as YAML: a list with `name`, `of`, which says where each is from, and what checkContainers compares. Of the
mounts and variables, those of the chart come before those of the values.
*/}}
{{- define "csi-attacher-operator.containers" -}}
{{- $token := dict "of" "the token of the ServiceAccount" "name" (include "csi-attacher-operator.tokenMount" . | fromYamlArray | first).mountPath }}
{{- $mounts := .Values.serviceAccount.automountServiceAccountToken | ternary list (list $token) }}
{{- $probes := include "csi-attacher-operator.probePorts" . | fromYaml }}
{{- $others := list }}
{{- range $name, $driver := .Values.drivers }}
{{- $socket := dict "of" (printf "the socket of drivers.%s" $name) "name" (printf "/csi/%s" $name) }}
{{- if not $driver.network }}
{{- $mounts = append $mounts $socket }}
{{- end }}
{{- with $driver.container }}
{{- $probed := list }}
{{- $httpGet := dig "livenessProbe" "httpGet" dict . }}
{{- with $httpGet.port }}
{{- $probed = list . }}
{{- end }}
{{- range .ports }}
{{- if and .name (has .name $probed) }}
{{- $probed = list .containerPort }}
{{- end }}
{{- end }}
{{- if and $driver.livenessProbe .livenessProbe }}
{{- fail (printf "drivers.%s has livenessProbe and container.livenessProbe: set only one of them" $name) }}
{{- end }}
{{- $shared := and $driver.serviceAccountToken (not $.Values.serviceAccount.automountServiceAccountToken) }}
{{- $others = append $others (dict "of" (printf "drivers.%s.container" $name) "name" $name "spec" . "probed" $probed
  "mounts" (empty $shared | ternary (list $socket) (list $socket $token))
  "security" (include "csi-attacher-operator.containerSecurity" (list $ .) | fromYaml)) }}
{{- end }}
{{- with $driver.livenessProbe }}
{{- $others = append $others (dict "of" (printf "drivers.%s.livenessProbe" $name) "name" (printf "probe-%s" $name) "port" (get $probes $name)
  "security" (include "csi-attacher-operator.containerSecurity" (list $ .) | fromYaml)) }}
{{- end }}
{{- end }}
{{- range $index, $container := .Values.extraContainers }}
{{- $others = append $others (dict "of" (printf "extraContainers[%d]" $index) "name" $container.name "spec" $container
  "security" $container.securityContext) }}
{{- end }}
{{- if .Values.otel.certificates.secretName }}
{{- $mounts = append $mounts (dict "of" "otel.certificates" "name" "/etc/otel") }}
{{- end }}
{{- $own := dict "of" "volumeMounts" "by" (list "mountPath") "list" .Values.volumeMounts }}
{{- $operator := dict "of" "the operator" "name" "operator" "port" (include "csi-attacher-operator.port" . | int)
  "variables" (include "csi-attacher-operator.variables" . | fromYamlArray)
  "mounts" (concat $mounts (include "csi-attacher-operator.items" $own | fromYamlArray))
  "security" (include "csi-attacher-operator.containerSecurity" (list . dict) | fromYaml) }}
{{- prepend $others $operator | toYaml }}
{{- end }}

{{/*
Refuses a pod that the API server or server-side apply refuses, or in which a container answers for another: two containers with one name
or one port, a port with the name of the operator's, and in one container two variables of one name or two mounts at one path.
Values files are merged by Helm: of a list, such as extraContainers, only that of the last file is left.
*/}}
{{- define "csi-attacher-operator.checkContainers" -}}
{{- $containers := include "csi-attacher-operator.containers" . | fromYamlArray }}
{{- include "csi-attacher-operator.distinct" (list $containers "%s and %s are both a container of the name %s: give one of them another name") }}
{{- $ports := list }}
{{- $probed := list }}
{{- range $containers }}
{{- $of := .of }}
{{- $spec := .spec | default dict }}
{{- with .port }}
{{- $ports = append $ports (dict "of" $of "name" (printf "%d/TCP" (int .))) }}
{{- end }}
{{- range $index, $port := $spec.ports }}
{{- $at := printf "%s.ports[%d]" $of $index }}
{{- $ports = append $ports (dict "of" $at "name" (printf "%d/%s" (int $port.containerPort) ($port.protocol | default "TCP"))) }}
{{- if eq ($port.name | default "") "http" }}
{{- fail (printf "%s has a port of the name http, which is the operator's: a PodMonitor and the NetworkPolicy would mean both. Give the port another name" $of) }}
{{- end }}
{{- end }}
{{- range .probed }}
{{- $probed = append $probed (dict "of" $of "name" (toString .)) }}
{{- end }}
{{- $env := dict "of" (printf "%s.env" $of) "by" (list "name") "list" $spec.env }}
{{- $variables := concat (.variables | default list) (include "csi-attacher-operator.items" $env | fromYamlArray) }}
{{- include "csi-attacher-operator.distinct" (list $variables "%s and %s both set the variable %s: remove one of them") }}
{{- $own := dict "of" (printf "%s.volumeMounts" $of) "by" (list "mountPath") "list" $spec.volumeMounts }}
{{- $mounts := concat (.mounts | default list) (include "csi-attacher-operator.items" $own | fromYamlArray) }}
{{- include "csi-attacher-operator.distinct" (list $mounts "%s and %s are both mounted at %s: remove one of them, or give it another mountPath") }}
{{- include "csi-attacher-operator.checkSecurity" (list $ .) }}
{{- end }}
{{- $cure := "remove one, or give it another port; for the liveness probe of a driver use drivers.NAME.livenessProbe, which has a port for each driver" }}
{{- include "csi-attacher-operator.distinct" (list $ports (printf "%%s and %%s both have port %%s, and the containers of a pod share one network: %s" $cure)) }}
{{- include "csi-attacher-operator.distinct" (list $probed (printf "%%s and %%s both have their livenessProbe at port %%s, where one program answers for both: %s" $cure)) }}
{{- end }}

{{/* Refuses what a container would never start with, or the API server refuses. */}}
{{- define "csi-attacher-operator.checkSecurity" -}}
{{- $values := (first .).Values }}
{{- $container := last . }}
{{- $security := $container.security | default dict }}
{{- $isOperator := eq $container.of "the operator" }}
{{- $user := dict }}
{{- range list ($values.podSecurityContext | default dict) $security }}
{{- /* Not merged, which would take 0 and false for nothing. */}}
{{- range $key, $value := pick . "runAsUser" "runAsNonRoot" }}
{{- if not (kindIs "invalid" $value) }}
{{- $_ := set $user $key $value }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (eq (get $user "runAsUser" | toString) "0") (get $user "runAsNonRoot") }}
{{- $where := printf "%s.securityContext" $container.of }}
{{- if $isOperator }}
{{- $where = hasKey $security "runAsNonRoot" | ternary "containerSecurityContext" "podSecurityContext" }}
{{- end }}
{{- fail (printf "%s has runAsUser 0 with runAsNonRoot true, and would never start: set %s.runAsNonRoot: false, or another runAsUser" $container.of $where) }}
{{- end }}
{{- with include "csi-attacher-operator.escalates" $security }}
{{- /* The API server knows the capability by the longer of its names alone. */}}
{{- if and (eq (get $security "allowPrivilegeEscalation" | toString) "false") (ne . "SYS_ADMIN") }}
{{- fail (printf "%s.securityContext has allowPrivilegeEscalation false with %s, which the API server refuses: remove allowPrivilegeEscalation" $container.of .) }}
{{- end }}
{{- end }}
{{- end }}

{{/* What does not go with `allowPrivilegeEscalation: false` in a security context, or nothing. */}}
{{- define "csi-attacher-operator.escalates" -}}
{{- $added := (.capabilities | default dict).add | default list }}
{{- if .privileged }}privileged true{{ else if has "CAP_SYS_ADMIN" $added }}CAP_SYS_ADMIN{{ else if has "SYS_ADMIN" $added }}SYS_ADMIN{{ end }}
{{- end }}

{{/*
The security context of a container: its own fields, which may be false, and those of containerSecurityContext that it does not set. The
operator's container has none of its own. Where all of them together are privileged or have SYS_ADMIN, containerSecurityContext does not
forbid to escalate: Kubernetes refuses both, and Helm has merged the default of the chart with what somebody wrote.
*/}}
{{- define "csi-attacher-operator.containerSecurity" -}}
{{- $own := (last .).securityContext | default dict }}
{{- $all := deepCopy ((first .).Values.containerSecurityContext | default dict) }}
{{- range $key, $value := $own }}
{{- $_ := set $all $key $value }}
{{- end }}
{{- if include "csi-attacher-operator.escalates" $all }}
{{- /* Who is privileged has all capabilities. */}}
{{- range empty $all.privileged | ternary (list "allowPrivilegeEscalation") (list "allowPrivilegeEscalation" "capabilities") }}
{{- if not (hasKey $own .) }}
{{- $_ := unset $all . }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $all }}
{{- end }}

{{/* The container that answers the liveness probe of a driver, by asking its plugin. */}}
{{- define "csi-attacher-operator.probeContainer" -}}
{{- $socket := printf "/csi/%s/%s" .name (.driver.socket | default "csi.sock") }}
{{- $own := dict "args" (concat (list (printf "--csi-address=%s" $socket) (printf "--health-port=%d" .port)) (.driver.livenessProbe.args | default list))
  "ports" (list (dict "containerPort" .port))
  "volumeMounts" (list (dict "name" (printf "socket-%s" .name) "mountPath" (printf "/csi/%s" .name))) }}
{{- if .first }}
{{- $_ := set $own "restartPolicy" "Always" }}
{{- end }}
{{- $_ := set $own "securityContext" (include "csi-attacher-operator.containerSecurity" (list .root .driver.livenessProbe) | fromYaml) }}
{{- merge $own (pick .driver.livenessProbe "image" "imagePullPolicy" "resources") | toYaml }}
{{- end }}

{{/* The containers of drivers that start before the operator, or of those that do not, as `first` says. */}}
{{- define "csi-attacher-operator.driverContainers" -}}
{{- $root := .root }}
{{- $first := .first }}
{{- $probes := include "csi-attacher-operator.probePorts" $root | fromYaml }}
{{- range $name, $driver := $root.Values.drivers }}
{{- if and $driver.container (eq $first (dig "startsFirst" true $driver)) }}
{{- $mounts := list (dict "name" (printf "socket-%s" $name) "mountPath" (printf "/csi/%s" $name)) }}
{{- if and $driver.serviceAccountToken (not $root.Values.serviceAccount.automountServiceAccountToken) }}
{{- $mounts = concat $mounts (include "csi-attacher-operator.tokenMount" $root | fromYamlArray) }}
{{- end }}
{{- $settings := dict "volumeMounts" (concat $mounts ($driver.container.volumeMounts | default list)) }}
{{- if $first }}
{{- $_ := set $settings "restartPolicy" "Always" }}
{{- end }}
{{- $port := get $probes $name | int }}
{{- with $driver.livenessProbe }}
{{- $probe := dict "httpGet" (dict "path" "/healthz" "port" $port) "initialDelaySeconds" 10 "timeoutSeconds" 3 "periodSeconds" 10 "failureThreshold" 5 }}
{{- /* Not merged, which would take a 0 for nothing. */}}
{{- range $key, $value := pick . "initialDelaySeconds" "timeoutSeconds" "periodSeconds" "failureThreshold" "terminationGracePeriodSeconds" }}
{{- $_ := set $probe $key $value }}
{{- end }}
{{- $_ := set $settings "livenessProbe" $probe }}
{{- end }}
{{- $_ := set $settings "securityContext" (include "csi-attacher-operator.containerSecurity" (list $root $driver.container) | fromYaml) }}
- name: {{ $name | toYaml }}
  {{- merge $settings (omit $driver.container "name" "securityContext") | toYaml | nindent 2 }}
{{- if $driver.livenessProbe }}
- name: probe-{{ $name }}
  {{- include "csi-attacher-operator.probeContainer" (dict "root" $root "name" $name "driver" $driver "port" $port "first" $first) | nindent 2 }}
{{- end }}
{{ end }}
{{- end }}
{{- end }}
