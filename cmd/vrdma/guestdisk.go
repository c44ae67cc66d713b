package main

import (
	"archive/tar"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/platform/launch"
)

// A machine without a network gets the agent from a disk. The disk is a tar archive, not a file system: every machine
// can read it from the block device, without a kernel driver.

//go:embed guest/install
var guestInstall []byte

//go:embed guest/vrdma-agent.service
var guestUnit []byte

// diskSerial is the serial number by which the machine finds the disk.
const diskSerial = "vrdma"

func guestDiskCommand() *cobra.Command {
	var output, id string
	c := &cobra.Command{
		Use:   "disk FILE",
		Short: "write a disk from which a virtual machine installs the agent",
		Long: `Writes a small disk, a tar archive, with the files for vrdma guest agent, and prints the
arguments for QEMU or libvirt. The machine needs no network. In the machine, as root:

  tar -xOf /dev/disk/by-id/virtio-vrdma install | sh

It installs vrdma in /usr/local and, with systemd, starts the agent now and at every boot.
Several machines can use the same file. An existing file is replaced; a machine that has it
open keeps the old one.`,
		Example: "  qemu-system-x86_64 $(vrdma guest args red/web) $(vrdma guest disk /var/tmp/vrdma.disk) disk.img",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			path, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			line := fmt.Sprintf("-drive file=%s,if=none,id=%s-disk,format=raw,readonly=on -device virtio-blk-pci,drive=%[2]s-disk,serial=%s",
				strings.ReplaceAll(path, ",", ",,"), id, diskSerial)
			switch output {
			case "qemu":
			case "libvirt":
				line = fmt.Sprintf("<!-- into <devices> -->\n<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='%s'/><target dev='vdz' bus='virtio'/><serial>%s</serial><readonly/></disk>",
					xmlText.Replace(path), diskSerial)
			default:
				return usage("-o %s: choose qemu or libvirt", output)
			}
			if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
				return usage("%s is no file: name one that may be replaced", path)
			}
			if err := writeWhole(path, 0o644, writeDisk); err != nil { // QEMU may run as another user
				return fmt.Errorf("write the disk: %w", err)
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), line)
			return err
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "qemu", "format: qemu or libvirt")
	c.Flags().StringVar(&id, "id", "vrdma", "prefix of the names of QEMU's objects")
	return c
}

// writeDisk writes the archive.
func writeDisk(to io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	w := tar.NewWriter(to)
	add := func(name string, mode int64, content []byte) error {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content)), Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	if err := errors.Join(add("install", 0o755, guestInstall), add("vrdma-agent.service", 0o644, guestUnit)); err != nil {
		return err
	}
	for _, name := range []string{"vrdma", "libvrdma.so", "libvrdma-sockets.so"} {
		source := self
		if name != "vrdma" {
			if source, err = launch.FindLibrary(name); err != nil {
				return err
			}
		}
		content, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		if err := add(name, 0o755, content); err != nil {
			return err
		}
	}
	return w.Close()
}
