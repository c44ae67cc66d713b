{{- define "vrdma.labels" -}}
app.kubernetes.io/name: vrdma
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end }}

{{- define "vrdma.selector" -}}
app.kubernetes.io/name: vrdma
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* vrdma.nodes is how many nodes of the cluster the DaemonSet selects. Without a cluster (helm template) it is 0. */}}
{{- define "vrdma.nodes" -}}
{{- $count := 0 }}
{{- range (lookup "v1" "Node" "" "").items }}
{{- $node := . }}
{{- $selected := true }}
{{- range $key, $value := $.Values.nodeSelector }}
{{- if ne (index ($node.metadata.labels | default dict) $key | default "") $value }}
{{- $selected = false }}
{{- end }}
{{- end }}
{{- if $selected }}
{{- $count = add1 $count }}
{{- end }}
{{- end }}
{{- $count }}
{{- end }}

{{/* vrdma.check refuses values that would split the nodes: each would have objects and addresses of its own, silently. */}}
{{- define "vrdma.check" -}}
{{- if not .Values.store.endpoints }}
{{- if not .Values.singleNode }}
{{- fail "store.endpoints is empty: nodes without a shared store do not see each other's objects, and give out the same addresses. Set store.endpoints to your etcd, or singleNode=true for a cluster of one node" }}
{{- end }}
{{- $nodes := include "vrdma.nodes" . | int }}
{{- if gt $nodes 1 }}
{{- fail (printf "singleNode=true, but nodeSelector selects %d nodes: select one node, or set store.endpoints to your etcd" $nodes) }}
{{- end }}
{{- end }}
{{- if and .Values.store.endpoints .Values.store.user (not .Values.store.secret) }}
{{- fail "store.user needs store.secret: a Secret with the key password" }}
{{- end }}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.enabled) }}
{{- fail "metrics.serviceMonitor.enabled needs metrics.enabled" }}
{{- end }}
{{- end }}
