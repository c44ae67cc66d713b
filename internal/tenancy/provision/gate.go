package provision

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// The gate is the directory around a NIC's own. A user that cannot enter the gate cannot mount the NIC's directory into
// a container either, whatever the uids are in there. The gate has an access control list (acl(5)) with the users and
// groups of spec.open. If spec.open names none, the gate has the mode of the daemon's own directory. If spec.open names
// only a control group or a network namespace, every user can enter, and the listener decides.
//
// On a file system without such lists every user can enter, too, and the listener decides.

// setGate admits the users that may open the NIC now.
func (d *directories) setGate(s *hostedNIC) error {
	gate, who := s.place.Gate(), s.open.now.Load()
	mode := fs.FileMode(searchable)
	if s.open.anybody() {
		mode = d.host.cfg.DirMode
	}
	if len(who.UIDs)+len(who.GIDs) > 0 {
		err := unix.Setxattr(gate, aclAttribute, aclOf(who), 0)
		if err == nil {
			return nil
		}
		d.host.cfg.Log.Warn("the directory of a NIC cannot be closed to users who may not open it; its listener checks them", "nic", s.key.Path(), "error", err)
	}
	if err := unix.Removexattr(gate, aclAttribute); err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) {
		return &os.PathError{Op: "removexattr", Path: gate, Err: err}
	}
	return os.Chmod(gate, mode)
}

// The kernel's form of an access control list (linux/posix_acl_xattr.h): a version, then entries
// of a tag, rights and an id, in the order of the tags and ids. acl(5) has the rules.
const (
	aclAttribute = "system.posix_acl_access"
	aclVersion   = 2

	aclUserObj  = 0x01
	aclUser     = 0x02
	aclGroupObj = 0x04
	aclGroup    = 0x08
	aclMask     = 0x10
	aclOther    = 0x20

	aclPass    = 1 // x: names can be looked up, not listed
	aclAll     = 7
	aclNothing = ^uint32(0) // id of entries without one
)

// aclOf returns an access control list that gives the owner all rights, and the users and groups in who search
// permission.
func aclOf(who *tenant.Who) []byte {
	b := binary.LittleEndian.AppendUint32(nil, aclVersion)
	entry := func(tag, rights uint16, id uint32) {
		b = binary.LittleEndian.AppendUint16(b, tag)
		b = binary.LittleEndian.AppendUint16(b, rights)
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	list := func(tag uint16, ids []int) {
		ids = slices.Clone(ids)
		slices.Sort(ids)
		for _, id := range slices.Compact(ids) {
			entry(tag, aclPass, uint32(id))
		}
	}
	entry(aclUserObj, aclAll, aclNothing)
	list(aclUser, who.UIDs)
	entry(aclGroupObj, 0, aclNothing)
	list(aclGroup, who.GIDs)
	entry(aclMask, aclPass, aclNothing)
	entry(aclOther, 0, aclNothing)
	return b
}
