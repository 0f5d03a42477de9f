{{/* Names are fixed, since there is one Stowage in a cluster: its drivers' names are the cluster's. */}}

{{- define "stowage.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Of all objects. */}}
{{- define "stowage.labels" -}}
app.kubernetes.io/name: stowage
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{/* By which pods are found: these never change. */}}
{{- define "stowage.selector" -}}
app.kubernetes.io/name: stowage
app.kubernetes.io/component: {{ . }}
{{- end -}}

{{/* What has no rights: no privileges, no capabilities, nothing to write to. */}}
{{- define "stowage.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Folders of the nodes that local stores are in, besides the agent's own. */}}
{{- define "stowage.hostPaths" -}}
{{- $paths := .Values.agent.hostPaths -}}
{{- range .Values.stores -}}
{{- if hasPrefix "local://" .uri -}}{{- $paths = append $paths (trimPrefix "local://" .uri) -}}{{- end -}}
{{- end -}}
{{- if .Values.defaultStore.enabled -}}{{- $paths = append $paths .Values.defaultStore.path -}}{{- end -}}
{{- $outside := list -}}
{{- range $paths -}}
{{- if not (hasPrefix "/var/lib/stowage/" .) -}}{{- $outside = append $outside . -}}{{- end -}}
{{- end -}}
{{- $outside | uniq | toJson -}}
{{- end -}}

{{/* Certificates of stores, under the names that stores look for. Kubelets bring them: no account may read any Secret for it. */}}
{{- define "stowage.secretMounts" -}}
{{- range $at, $name := .Values.storeSecrets }}
- {name: secret-{{ $at }}, mountPath: {{ printf "/etc/stowage/secrets/%s" $name | quote }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "stowage.secretVolumes" -}}
{{- range $at, $name := .Values.storeSecrets }}
- name: secret-{{ $at }}
  secret:
    secretName: {{ $name | quote }}
    optional: true
    defaultMode: 0440
    items:
      - {key: ca.crt, path: ca.pem}
      - {key: tls.crt, path: client.pem}
      - {key: tls.key, path: client.key}
{{- end }}
{{- end -}}

{{/* Empty: agents show no figures to others. */}}
{{- define "stowage.agentMetrics" -}}
{{- if and .Values.monitoring.enabled .Values.agent.metrics.enabled }}true{{ end -}}
{{- end -}}

{{/* The store that is there without configuration, and those that are asked for. */}}
{{- define "stowage.stores" -}}
{{- $stores := list -}}
{{- with .Values.defaultStore -}}
{{- if .enabled -}}
{{- $stores = append $stores (dict "name" .name "uri" (printf "local://%s" .path) "options" .options "storageClass" .storageClass) -}}
{{- end -}}
{{- end -}}
{{- with .Values.embeddedNFS -}}
{{- if .enabled -}}
{{- $host := .clusterIP | default (printf "stowage-nfs.%s.svc" $.Release.Namespace) -}}
{{- if contains ":" $host -}}{{- $host = printf "[%s]" $host -}}{{- end -}}
{{- $options := dict "port" "2049" "mountport" "2049" "squash" "all" "uid" "7878" "gid" "7878" -}}
{{- $stores = append $stores (dict "name" .name "uri" (printf "nfs://%s/export" $host) "options" $options "storageClass" .storageClass) -}}
{{- end -}}
{{- end -}}
{{- concat $stores .Values.stores | toJson -}}
{{- end -}}
