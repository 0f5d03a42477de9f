/**
 * Replaces the populator that Kubernetes' own tests run, which exists only as an image. A claim whose data source is a
 * Hello gets a volume with a file in it, in the same way as with the original: another claim of the same class, without
 * that data source, gets the volume; a pod writes the file; then the volume is bound to the first claim.
 */
export const populator = `
for word; do
  case "$word" in
    --namespace=*) own=\${word#*=} ;;
    --image-name=*) image=\${word#*=} ;;
  esac
done
make() { /kubectl --namespace "$own" create --validate=false --filename - 2>/dev/null; }
get() { /kubectl --namespace "$1" get "$2" "$3" --output "$4" 2>/dev/null; }
prime='{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"prime-{{.metadata.uid}}",
  "annotations":{ {{with .metadata.annotations}}{{with index . "volume.kubernetes.io/selected-node"}}
    "volume.kubernetes.io/selected-node":"{{.}}"{{end}}{{end}} } },
  "spec":{"storageClassName":"{{.spec.storageClassName}}","resources":{"requests":{"storage":"{{.spec.resources.requests.storage}}"} },
  "accessModes":[{{range $i, $mode := .spec.accessModes}}{{if $i}},{{end}}"{{$mode}}"{{end}}]}}'
writer='{"apiVersion":"v1","kind":"Pod","metadata":{"name":"%s"},"spec":{"restartPolicy":"Never",
  "containers":[{"name":"writer","image":"%s","command":["/bin/sh","-c","echo \\\\"$2\\\\" >/mnt/$1","sh","%s","%s"],
    "volumeMounts":[{"name":"data","mountPath":"/mnt"}]}],
  "volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"%s"}}]}}'
fill() { # namespace claim uid source volume
  name="prime-$3"
  if [ "$5" != - ]; then
    /kubectl --namespace "$own" delete pod,persistentvolumeclaim "$name" --ignore-not-found --wait=false >/dev/null
    return
  fi
  mode=$(get "" storageclass "$(get "$1" persistentvolumeclaim "$2" 'jsonpath={.spec.storageClassName}')" 'jsonpath={.volumeBindingMode}')
  node=$(get "$1" persistentvolumeclaim "$2" 'jsonpath={.metadata.annotations.volume\\.kubernetes\\.io/selected-node}')
  if [ "$mode" = WaitForFirstConsumer ] && [ -z "$node" ]; then return; fi
  phase=$(get "$own" pod "$name" 'jsonpath={.status.phase}')
  if [ "$phase" = Succeeded ]; then
    volume=$(get "$own" persistentvolumeclaim "$name" 'jsonpath={.spec.volumeName}')
    claim="{\\"namespace\\":\\"$1\\",\\"name\\":\\"$2\\",\\"uid\\":\\"$3\\",\\"resourceVersion\\":null}"
    /kubectl patch persistentvolume "$volume" --type merge --patch "{\\"spec\\":{\\"claimRef\\":$claim}}"
  elif [ -z "$phase" ]; then
    get "$1" persistentvolumeclaim "$2" "go-template=$prime" | make
    file=$(get "$1" hellos.hello.example.com "$4" 'jsonpath={.spec.fileName}')
    text=$(get "$1" hellos.hello.example.com "$4" 'jsonpath={.spec.fileContents}')
    printf "$writer" "$name" "$image" "$file" "$text" "$name" | make
  fi
}
list='{{range $claim := .items}}{{with $claim.spec.dataSourceRef}}{{if eq .kind "Hello"}}{{$claim.metadata.namespace}} {{$claim.metadata.name}} {{$claim.metadata.uid}} {{.name}} {{or $claim.spec.volumeName "-"}}
{{end}}{{end}}{{end}}'
while :; do
  /kubectl get persistentvolumeclaims --all-namespaces --output "go-template=$list" |
    while read -r space claim uid source volume; do fill "$space" "$claim" "$uid" "$source" "$volume" </dev/null; done
  sleep 1
done
`;
