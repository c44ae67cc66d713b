package provision

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// The gate is the directory around a NIC's own. A user that cannot enter the gate cannot mount the NIC's directory into
// a container either, whatever the uids are in there. The gate has an access control list (acl(5)) with the users and
// groups of spec.open. If spec.open names none, the gate has the mode of the daemon's own directory. If spec.open names
// only a control group or a network namespace, every user can enter, and the listener decides.
//
// On a file system without such lists every user can enter, too, and the listener decides.

// The gates lie below the directory of the daemon's socket, which is often closed: root's default is 0700. That
// directory has an access control list, too: the users and groups of all gates can search it, and nothing else. The
// daemon's other files there are the daemon's own by their modes.

// A passage is the access control list of the daemon's directory.
type passage struct {
	dir string
	log *slog.Logger
	mu  sync.Mutex // guards of
	of  map[tenant.Key]*tenant.Who
}

// set admits the users of a NIC as far as its gate; an empty who admits nobody.
func (p *passage) set(k tenant.Key, who *tenant.Who) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = make(map[tenant.Key]*tenant.Who)
	}
	_, had := p.of[k]
	if has := len(who.UIDs)+len(who.GIDs) > 0; has {
		p.of[k] = who
	} else if had {
		delete(p.of, k)
	} else {
		return
	}
	p.apply()
}

// clear removes the list: the daemon starts or ends.
func (p *passage) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of = nil
	p.apply()
}

// apply sets the list, if the directory is the daemon's own and closed to others. mu is held.
func (p *passage) apply() {
	var st unix.Stat_t
	if unix.Stat(p.dir, &st) != nil || int(st.Uid) != os.Geteuid() || st.Mode&0o001 != 0 {
		return
	}
	var all tenant.Who
	for _, who := range p.of {
		all.UIDs, all.GIDs = append(all.UIDs, who.UIDs...), append(all.GIDs, who.GIDs...)
	}
	if len(p.of) == 0 {
		if err := unix.Removexattr(p.dir, aclAttribute); err == nil {
			err = unix.Chmod(p.dir, 0o700) // the mode had the list's mask as the group's rights
			p.warn(err)
		}
		return
	}
	p.warn(unix.Setxattr(p.dir, aclAttribute, aclOf(&all), 0))
}

func (p *passage) warn(err error) {
	if err != nil {
		p.log.Warn("users in spec.open reach their NICs only where the NIC's directory is mounted: the daemon's directory is closed to them",
			"directory", p.dir, "error", err, "do", "chmod o+x it, or start the daemon with --mode 0666")
	}
}

// setGate admits the users that may open the NIC now.
func (d *directories) setGate(s *hostedNIC) error {
	d.passage.set(s.key, s.open.now.Load())
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
