{{/*
The data of the Secret with the certificates of the embedded NFS server, as JSON. If the cluster has certificates already, they are kept, because mounts use them.
Without a cluster, as with `helm template`, each rendering creates new ones. Include this only once, because each result is different.
*/}}
{{- define "stowage.nfsCertificates" -}}
{{- $host := include "stowage.nfsHost" . -}}
{{- $days := 3650 -}}
{{- $found := (lookup "v1" "Secret" .Release.Namespace "stowage-nfs-tls").data | default dict -}}
{{- $ca := dict -}}
{{- if hasKey $found "ca.key" -}}
{{- $ca = buildCustomCert (get $found "ca.crt") (get $found "ca.key") -}}
{{- else -}}
{{- $found = dict -}}
{{- $ca = genCA "stowage-nfs" $days -}}
{{- end -}}
{{- $data := dict "ca.crt" (b64enc $ca.Cert) "ca.key" (b64enc $ca.Key) "host" (b64enc $host) -}}
{{- range $name := list "server" "client" "mount" -}}
{{- $cert := printf "%s.crt" $name -}}
{{- $key := printf "%s.key" $name -}}
{{- $isServer := eq $name "server" -}}
{{- /* The server's certificate is for one host. */ -}}
{{- if and (hasKey $found $cert) (hasKey $found $key) (or (not $isServer) (eq (get $found "host") (b64enc $host))) -}}
{{- $_ := set $data $cert (get $found $cert) -}}
{{- $_ := set $data $key (get $found $key) -}}
{{- else -}}
{{- $isAddress := or (contains ":" $host) (regexMatch "^[0-9.]+$" $host) -}}
{{- $addresses := ternary (list $host) list (and $isServer $isAddress) -}}
{{- $names := ternary (list $host) list (and $isServer (not $isAddress)) -}}
{{- $made := genSignedCert (printf "stowage-%s" $name) $addresses $names $days $ca -}}
{{- $_ := set $data $cert (b64enc $made.Cert) -}}
{{- $_ := set $data $key (b64enc $made.Key) -}}
{{- end -}}
{{- end -}}
{{- $data | toJson -}}
{{- end -}}
