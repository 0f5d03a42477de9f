#!/bin/sh
# Creates a managed Docker plugin from the image: deploy/plugin/create.sh [NAME] [IMAGE]
#
# NAME is stowage (the default) for stores that other hosts share, or stowage-local for stores of this machine: each is a Stowage
# of its own. With a registry in front of the name, `docker plugin push` pushes to it. The default IMAGE is stowage. Afterwards:
#
#   docker plugin enable stowage
set -eu

name=${1:-stowage}
image=${2:-stowage}
here=$(cd "$(dirname "$0")" && pwd -P)
socket=${name##*/}
socket=${socket%%:*}
case $socket in
  stowage | stowage-local) ;;
  *) echo "create.sh: a plugin is called stowage or stowage-local, not $socket" >&2 && exit 2 ;;
esac

folder=$(mktemp -d)
container=$(docker create "$image" node)
trap 'docker rm -v "$container" >/dev/null; rm -rf "$folder"' EXIT
mkdir "$folder/rootfs"
docker export "$container" | tar -x -f - -C "$folder/rootfs"
sed "s/\"stowage.sock\"/\"$socket.sock\"/" "$here/config.json" >"$folder/config.json"
docker plugin create "$name" "$folder"
