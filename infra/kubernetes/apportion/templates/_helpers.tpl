{{- define "apportion.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "apportion.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- /* Labels of a part: (dict "root" . "part" "node") */ -}}
{{- define "apportion.selector" -}}
app.kubernetes.io/name: apportion
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "apportion.labels" -}}
{{ include "apportion.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- if .root.Values.region.enabled }}
apportion/region: {{ .root.Values.region.name }}
{{- end }}
{{- end }}

{{- define "apportion.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .user }}
runAsGroup: {{ .user }}
fsGroup: {{ .user }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "apportion.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "apportion.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* One file of a secret under /run/secrets: (dict "secret" .Values.secrets.token "path" "token") */ -}}
{{- define "apportion.secretFile" -}}
- secret:
    name: {{ .secret.name }}
    items: [{key: {{ .secret.key }}, path: {{ .path }}}]
{{- end }}

{{- define "apportion.probes" -}}
livenessProbe:
  httpGet: {path: /livez, port: http}
  periodSeconds: 5
  failureThreshold: 4
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 2
  failureThreshold: 2
startupProbe:
  httpGet: {path: /livez, port: http}
  periodSeconds: 1
  failureThreshold: 60
{{- end }}

{{- define "apportion.redisName" -}}
{{ include "apportion.name" . }}-redis
{{- end }}

{{- /* host:port of every server of our own Redis, primaries first */ -}}
{{- define "apportion.redisServers" -}}
{{- $name := include "apportion.redisName" . -}}
{{- $count := mul .Values.redis.primaries (add 1 .Values.redis.replicasEach) | int -}}
{{- range $index, $_ := until $count }}{{ if $index }} {{ end }}{{ $name }}-{{ $index }}.{{ $name }}.{{ $.Release.Namespace }}.svc:6379{{ end }}
{{- end }}
