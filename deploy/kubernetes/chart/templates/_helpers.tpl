{{/* Names are fixed: a cluster has only one Stowage, because the names of CSI drivers are cluster-wide. */}}

{{- define "stowage.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The labels of all objects. */}}
{{- define "stowage.labels" -}}
app.kubernetes.io/name: stowage
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{/* The labels in selectors, which can never change. */}}
{{- define "stowage.selector" -}}
app.kubernetes.io/name: stowage
app.kubernetes.io/component: {{ . }}
{{- end -}}

{{/* A security context without privileges, capabilities and writable root file system. */}}
{{- define "stowage.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/*
The node folders that agents mount in addition to their own: the parent folders of stores. Kubernetes creates a missing folder that a pod mounts. If it created
the folder of a store whose disk is not mounted, the store would write to the disk below, and its volumes would be hidden once the disk is mounted. If the parent
is a folder that the agent's container needs for itself, such as /, agents mount the store's own folder.
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

{{/* The Secret with the certificates of the embedded NFS server. Empty: the server requires none. A disabled server keeps running, so agents still need its certificates. */}}
{{- define "stowage.nfsSecret" -}}
{{- with .Values.embeddedNFS.tls -}}
{{- if .enabled -}}{{ .secretName | default "stowage-nfs-tls" }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The name or address by which clients reach the embedded NFS server. */}}
{{- define "stowage.nfsHost" -}}
{{ .Values.embeddedNFS.clusterIP | default (printf "stowage-nfs.%s.svc" .Release.Namespace) }}
{{- end -}}

{{/* Certificates of stores, at the paths that stores use. Kubelets mount them, so no account needs a right to read Secrets. */}}
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

{{/* Empty: agents serve no metrics. */}}
{{- define "stowage.agentMetrics" -}}
{{- if and .Values.monitoring.enabled .Values.agent.metrics.enabled }}true{{ end -}}
{{- end -}}

{{/* The default store, and the stores in the values. */}}
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
