package container

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/platform/preflight"
)

// An image may have its own /etc/ld.so.preload, over which the NIC's is mounted. A hook in the container's namespaces merges
// both into a file in a tmpfs that only the container's mount namespace has. Nothing is written to the image, and nothing is
// left on the host.

// mostPreload bounds the size of an image's file.
const mostPreload = 64 << 10

// Merge merges the files of the container whose root file system is at root, in the current mount namespace, after the
// runtime's mounts and before pivot_root. It reports whether there was something to merge.
func Merge(root string) (merged bool, err error) {
	own, err := ownPreload(root)
	if err != nil || len(own) == 0 {
		return false, err
	}
	dir, err := os.Open(root)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	return true, cover(dir, mergedText(own))
}

// mergedText returns the merged file. libvrdma.so is last, nearest to libc: the image's libraries may change calls of
// programs, and then call libvrdma.so as they would call the kernel.
func mergedText(own []byte) []byte {
	if bytes.Contains(own, []byte("libvrdma.so")) {
		return own
	}
	out := append(bytes.TrimRight(bytes.Clone(own), " \t\n"), '\n')
	return append(out, PreloadText...)
}

// ownPreload returns the content of the image's file; nil: none. It ignores mounts inside the root.
func ownPreload(root string) ([]byte, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, root, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open_tree %s: %w", root, err)
	}
	tree := os.NewFile(uintptr(fd), root)
	defer tree.Close()
	f, err := preflight.OpenIn(tree, Preload)
	if err != nil {
		return nil, nil // there is none
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostPreload+1))
	if err == nil && len(text) > mostPreload {
		err = fmt.Errorf("the image's %s has more than %d bytes: it is left out", Preload, mostPreload)
	}
	return bytes.TrimSpace(text), err
}

// openBelow opens a path in a root file system. Symbolic links cannot leave the root.
func openBelow(root int, path string, flags uint64) (*os.File, error) {
	fd, err := unix.Openat2(root, path, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// cover mounts a file with a text over the NIC's mount. The file's tmpfs is mounted for a moment, over the NIC's
// directory.
func cover(root *os.File, text []byte) error {
	place, err := openBelow(int(root.Fd()), Dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer place.Close()
	target, err := openBelow(int(root.Fd()), Preload, unix.O_PATH)
	if err != nil {
		return err
	}
	defer target.Close()
	memory, err := newMemory()
	if err != nil {
		return err
	}
	defer unix.Close(memory)
	const name = "ld.so.preload"
	if err := writeIn(memory, name, text); err != nil {
		return err
	}
	const empty = unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH
	if err := unix.MoveMount(memory, "", int(place.Fd()), "", empty); err != nil {
		return fmt.Errorf("move_mount to %s: %w", Dir, err)
	}
	defer unix.Unmount(fmt.Sprintf("/proc/self/fd/%d", memory), unix.MNT_DETACH)
	file, err := unix.OpenTree(memory, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(file)
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(file, "", unix.AT_EMPTY_PATH, &readOnly); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	if err := unix.MoveMount(file, "", int(target.Fd()), "", empty); err != nil {
		return fmt.Errorf("move_mount to %s: %w", Preload, err)
	}
	return nil
}

// newMemory returns a tmpfs that is not mounted.
func newMemory() (fd int, err error) {
	made, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(made)
	for _, option := range [][2]string{{"size", "128k"}, {"mode", "0755"}} {
		if err := unix.FsconfigSetString(made, option[0], option[1]); err != nil {
			return -1, fmt.Errorf("fsconfig: %w", err)
		}
	}
	if err := unix.FsconfigCreate(made); err != nil {
		return -1, fmt.Errorf("fsconfig: %w", err)
	}
	if fd, err = unix.Fsmount(made, unix.FSMOUNT_CLOEXEC, 0); err != nil {
		return -1, fmt.Errorf("fsmount: %w", err)
	}
	return fd, nil
}

// writeIn creates a file that all users can read.
func writeIn(dir int, name string, text []byte) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return &os.PathError{Op: "create", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err = f.Write(text); err == nil {
		err = f.Chmod(0o644) // the umask is the engine's
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// MountNIC mounts a NIC's directory over the directory from the container's CDI file, in the current mount namespace.
func MountNIC(root, dir string) error {
	at, err := os.Open(root)
	if err != nil {
		return err
	}
	defer at.Close()
	place, err := openBelow(int(at.Fd()), Dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer place.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open_tree %s: %w", dir, err)
	}
	defer unix.Close(tree)
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &readOnly); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	if err := unix.MoveMount(tree, "", int(place.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount to %s: %w", Dir, err)
	}
	return nil
}
