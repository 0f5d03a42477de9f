// Exports a folder over NFS version 3 on loopback, for tests: go-nfs ADDRESS FOLDER
package main

import (
	"fmt"
	"net"
	"os"
	"time"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/osfs"
	nfs "github.com/willscott/go-nfs"
	"github.com/willscott/go-nfs/helpers"
	"golang.org/x/sys/unix"
)

// Handles are kept in memory: more files than this, and the oldest are STALE.
const handles = 100_000

// folder adds what the library asks for beyond a billy file system: owner, mode, times and special files.
type folder struct{ billy.Filesystem }

func (f folder) at(name string) string { return f.Join(f.Root(), name) }

func (f folder) Chmod(name string, mode os.FileMode) error { return os.Chmod(f.at(name), mode) }
func (f folder) Chown(name string, uid, gid int) error     { return os.Chown(f.at(name), uid, gid) }
func (f folder) Lchown(name string, uid, gid int) error    { return os.Lchown(f.at(name), uid, gid) }
func (f folder) Chtimes(name string, atime, mtime time.Time) error {
	return os.Chtimes(f.at(name), atime, mtime)
}

func (f folder) Mknod(name string, mode, major, minor uint32) error {
	return unix.Mknod(f.at(name), mode, int(unix.Mkdev(major, minor)))
}
func (f folder) Mkfifo(name string, mode uint32) error { return unix.Mkfifo(f.at(name), mode) }
func (f folder) Link(name, link string) error          { return unix.Link(f.at(name), f.at(link)) }
func (f folder) Socket(name string) error {
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	return unix.Bind(socket, &unix.SockaddrUnix{Name: f.at(name)})
}

func main() {
	if err := serve(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(address, path string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())
	export := helpers.NewNullAuthHandler(folder{osfs.New(path)})
	return nfs.Serve(listener, helpers.NewCachingHandler(export, handles))
}
