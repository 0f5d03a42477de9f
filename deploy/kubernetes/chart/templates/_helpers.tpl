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

{{/*
Folders of the nodes that agents are shown, besides their own. Not those of the stores themselves, but those that they lie in: a folder that is shown is
made where it is missing, and on a node whose disk is not mounted a store would begin on the disk below, to be hidden as soon as it is. Where that folder is
one that the agent's container needs for itself, such as /, it is the store's own.
*/}}
{{- define "stowage.hostPaths" -}}
{{- $paths := .Values.agent.hostPaths -}}
{{- range .Values.stores -}}
{{- if hasPrefix "local://" .uri -}}{{- $paths = append $paths (urlParse .uri).path -}}{{- end -}}
{{- end -}}
{{- if .Values.defaultStore.enabled -}}{{- $paths = append $paths .Values.defaultStore.path -}}{{- end -}}
{{- $own := list "/var/lib/stowage" "/run/stowage" "/var/run/secrets" "/dev" "/proc" "/sys" "/tmp" .Values.kubeletDir -}}
{{- $own = concat $own (list "/bin" "/etc" "/lib" "/lib64" "/sbin" "/usr/bin" "/usr/lib" "/usr/sbin" "/usr/local/bin" "/usr/local/lib") -}}
{{- $shown := list -}}
{{- range $path := $paths -}}
{{- $path = clean $path -}}
{{- $folder := dir $path -}}
{{- range $own -}}{{- if hasPrefix (printf "%s/" (trimSuffix "/" $folder)) (printf "%s/" .) -}}{{- $folder = $path -}}{{- end -}}{{- end -}}
{{- $shown = append $shown $folder -}}
{{- end -}}
{{- $outermost := list -}}
{{- range $path := uniq $shown -}}
{{- $isInside := hasPrefix "/var/lib/stowage/" $path -}}
{{- range $shown -}}{{- if hasPrefix (printf "%s/" .) $path -}}{{- $isInside = true -}}{{- end -}}{{- end -}}
{{- if not $isInside -}}{{- $outermost = append $outermost $path -}}{{- end -}}
{{- end -}}
{{- $outermost | toJson -}}
{{- end -}}

{{/* The Secret with the certificates of the embedded NFS server; empty: it wants none. A disabled server keeps running, so agents still need its certificates. */}}
{{- define "stowage.nfsSecret" -}}
{{- with .Values.embeddedNFS.tls -}}
{{- if .enabled -}}{{ .secretName | default "stowage-nfs-tls" }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* By which name or address clients know the embedded NFS server. */}}
{{- define "stowage.nfsHost" -}}
{{ .Values.embeddedNFS.clusterIP | default (printf "stowage-nfs.%s.svc" .Release.Namespace) }}
{{- end -}}

{{/* Certificates of stores, under the names that stores look for. Kubelets bring them: no account may read any Secret for it. */}}
{{- define "stowage.secretMounts" -}}
{{- if include "stowage.nfsSecret" . }}
- {name: secret-nfs, mountPath: /etc/stowage/embedded-nfs, readOnly: true}
{{- end }}
{{- range $at, $name := .Values.storeSecrets }}
- {name: secret-{{ $at }}, mountPath: {{ printf "/etc/stowage/secrets/%s" $name | quote }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "stowage.secretVolumes" -}}
{{- with include "stowage.nfsSecret" . }}
- name: secret-nfs
  secret:
    secretName: {{ . | quote }}
    optional: true
    defaultMode: 0440
    items:
      - {key: ca.crt, path: ca.pem}
      - {key: client.crt, path: client.pem}
      - {key: client.key, path: client.key}
      - {key: mount.crt, path: mount.pem}
      - {key: mount.key, path: mount.key}
{{- end }}
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
      - {key: mount.crt, path: mount.pem}
      - {key: mount.key, path: mount.key}
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
{{- $host := include "stowage.nfsHost" $ -}}
{{- if contains ":" $host -}}{{- $host = printf "[%s]" $host -}}{{- end -}}
{{- $options := dict "port" "2049" "mountport" "2049" "squash" "all" "uid" "7878" "gid" "7878" -}}
{{- if (.tls).enabled -}}{{- $_ := set $options "tls" "/etc/stowage/embedded-nfs" -}}{{- end -}}
{{- $stores = append $stores (dict "name" .name "uri" (printf "nfs://%s/export" $host) "options" $options "storageClass" .storageClass) -}}
{{- end -}}
{{- end -}}
{{- concat $stores .Values.stores | toJson -}}
{{- end -}}
