package protocol

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// twins pairs every constant and size of shim/protocol.h with ours.
var twins = map[string]int64{
	"VRDMA_MAGIC": Magic, "VRDMA_PROTOCOL": Version,
	"VRDMA_MAX_MESSAGE": MaxMessage, "VRDMA_MAX_FDS": MaxFDs,
	"VRDMA_KIND_PROCESS": int64(KindProcess), "VRDMA_KIND_UVERBS": int64(KindUverbs),
	"VRDMA_KIND_RDMACM": int64(KindRDMACM), "VRDMA_KIND_CONTROL": int64(KindControl),
	"VRDMA_KIND_NETLINK": int64(KindNetlink),
	"VRDMA_OP_COMMAND":   int64(OpCommand), "VRDMA_OP_SYNC": int64(OpSync), "VRDMA_OP_ROOM": int64(OpRoom),
	"VRDMA_OP_LEAVE": int64(OpLeave), "VRDMA_OP_STAY": int64(OpStay), "VRDMA_OP_RETURN": int64(OpReturn),
	"VRDMA_HELLO_MOVES": HelloMoves, "VRDMA_HELLO_RETURN": HelloReturn, "VRDMA_LEAVE_SIGNAL": LeaveSignal, "sizeof(struct vrdma_return)": ReturnSize,
	"VRDMA_DB_BITS": DoorbellBits, "VRDMA_DB_ARMED": DoorbellArmed, "VRDMA_DB_ANY": DoorbellAny,
	"VRDMA_DB_SUMMARY": DoorbellSummary, "VRDMA_DB_BITMAP": DoorbellBitmap, "VRDMA_DB_READY": DoorbellReady, "VRDMA_DB_SIZE": DoorbellSize,
	"VRDMA_DB_WAITING": DoorbellWaiting, "VRDMA_DB_CPU": DoorbellCPU, "VRDMA_DB_ANNOUNCED": WaitAnnounced, "VRDMA_DB_ASLEEP": WaitAsleep,
	"VRDMA_ARM_CQS": ArmCQs, "VRDMA_ARM_STRIDE": ArmStride, "VRDMA_ARM_READY": ArmReady, "VRDMA_ARM_SOLICITED": ArmSolicited,
	"VRDMA_ARM_RING": ArmRing, "VRDMA_ARM_WOKEN": ArmWoken, "VRDMA_ARM_URGENT": ArmUrgent, "VRDMA_ARM_NONE": ArmNone,
	"VRDMA_NOTIFY_LOOK": NotifyLook,
	"VRDMA_ARM_ALL":     ArmAll, "VRDMA_ARM_BY_COMMAND": ArmByCommand, "VRDMA_ARM_WORDS": ArmWords, "VRDMA_SHARED_SIZE": SharedSize,
	"VRDMA_ARM_WORDS + VRDMA_ARM_CQS * VRDMA_ARM_STRIDE": SharedSize,
	"VRDMA_EXTENT_HOLE": ExtentHole, "VRDMA_EXTENT_OWN": ExtentOwn, "VRDMA_EXTENT_FOREIGN": ExtentForeign, "VRDMA_EXTENT_SHARED": ExtentShared,
	"VRDMA_DESCRIPTOR_SHIFT": DescriptorShift, "VRDMA_MAPS_SHARED": MapsShared, "VRDMA_MAPS_DESCRIPTORS": MapsDescriptors,
	"VRDMA_PROT_READ": ProtRead, "VRDMA_PROT_WRITE": ProtWrite, "VRDMA_WHY_SHIFT": WhyShift,
	"VRDMA_WHY_UNKNOWN": int64(WhyUnknown), "VRDMA_WHY_PINNED": int64(WhyPinned), "VRDMA_WHY_FILE": int64(WhyFile),
	"VRDMA_WHY_THREAD": int64(WhyThread), "VRDMA_WHY_RUNNING": int64(WhyRunning), "VRDMA_WHY_ASYNC": int64(WhyAsync),
	"VRDMA_WHY_MAPPINGS": int64(WhyMappings), "VRDMA_WHY_KERNEL": int64(WhyKernel), "VRDMA_WHY_SPECIAL": int64(WhySpecial),
	"VRDMA_WHY_MEMORY": int64(WhyMemory), "VRDMA_WHY_STALLED": int64(WhyStalled), "VRDMA_WHY_COPIED": int64(WhyCopied),
	"VRDMA_FD_ASYNC": FDAsync, "VRDMA_FD_COMP": FDComp, "VRDMA_FD_MAIL": FDMail,
	"VRDMA_HELLO_MAIL": HelloMail, "VRDMA_HELLO_AHEAD": HelloAhead, "VRDMA_HELLO_FAULTS": HelloFaults, "VRDMA_MAX_FAULTS": MaxFaults, "VRDMA_MAIL_AHEAD": MailAhead,
	"VRDMA_AHEAD_COMMAND": AheadCommand, "VRDMA_AHEAD_EVENTS": AheadEvents, "VRDMA_AHEAD_REVISIONS": AheadRevisions,
	"VRDMA_AHEAD_IDS": AheadIDs, "VRDMA_AHEAD_SIZE": AheadSize, "VRDMA_AHEAD_REVISIONS + 8 * VRDMA_AHEAD_IDS": ShelfTaken,
	"VRDMA_SHELF_TAKEN": ShelfTaken, "VRDMA_SHELF_READY": ShelfReady, "VRDMA_SHELF_FROZEN": ShelfFrozen, "VRDMA_SHELF_SLOT": ShelfSlot,
	"VRDMA_SHELF_SLOTS": ShelfSlots, "VRDMA_SHELF_STRIDE": ShelfStride, "VRDMA_SHELF_REPLY": ShelfReply,
	"VRDMA_SHELF_SLOT + VRDMA_SHELF_SLOTS * VRDMA_SHELF_STRIDE": AheadSize,
	"VRDMA_MAIL_STATE": MailState, "VRDMA_MAIL_ASKED_LEN": MailAskedLen, "VRDMA_MAIL_REPLY_LEN": MailReplyLen,
	"VRDMA_SURE_LENGTH": SureLength, "VRDMA_SURE_HANDLE_AT": SureHandleAt, "VRDMA_SURE_VALUE": SureValue, "VRDMA_SURE_MASK": SureMask,
	"VRDMA_SURE_MAX": SureMax, "VRDMA_SURE_BITS": SureBits, "VRDMA_SURE_HANDLES": SureHandles,
	"VRDMA_SURE_VALUE + VRDMA_SURE_MAX": SureMask, "VRDMA_SURE_BITS + VRDMA_SURE_HANDLES / 8": DoorbellBitmap,
	"VRDMA_MAIL_LEFT": MailLeft, "VRDMA_MAIL_LEFT_LEN": MailLeftLen,
	"VRDMA_MAIL_REQUEST": MailRequest, "VRDMA_MAIL_REPLY": MailReply, "VRDMA_MAIL_SIZE": MailSize,
	"VRDMA_MAIL_OPEN": MailOpen, "VRDMA_MAIL_ASKED": MailAsked, "VRDMA_MAIL_ASLEEP": MailAsleep,
	"VRDMA_MAIL_ANSWERED": MailAnswered, "VRDMA_MAIL_SENT": MailSent,
	"sizeof(struct vrdma_hello)": HelloSize, "sizeof(struct vrdma_welcome)": WelcomeSize,
	"sizeof(struct vrdma_request)": RequestSize, "sizeof(struct vrdma_extent)": ExtentSize,
	"sizeof(struct vrdma_reply)": ReplySize, "sizeof(struct vrdma_store)": StoreSize,
	"sizeof(struct vrdma_fd)": FDSize, "sizeof(struct vrdma_ahead)": AheadHeader,
}

// samples are messages whose bytes C and Go must agree on: a C initialiser and
// what our encoder makes of the same values.
var samples = []struct {
	name, typ, init string
	got             []byte
}{
	{"hello", "struct vrdma_hello",
		`{.magic = VRDMA_MAGIC, .protocol = 1, .kind = VRDMA_KIND_UVERBS, .flags = 3, .token = {1, 2, 3}, .vnic = "v", .label = "l", .program = "ib_send_bw"}`,
		(&Hello{Magic: Magic, Protocol: 1, Kind: KindUverbs, Flags: 3, Token: Token{1, 2, 3}, VNIC: "v", Label: "l", Program: "ib_send_bw"}).Append(nil)},
	{"welcome", "struct vrdma_welcome",
		`{.magic = VRDMA_MAGIC, .protocol = 1, .error = 71, .nfds = 2, .token = {9}, .arena_size = 1ull << 32, .rdev_major = 231, .rdev_minor = 192, .daemon_pid = -5, .text = "why"}`,
		(&Welcome{Magic: Magic, Protocol: 1, Error: 71, NumFDs: 2, Token: Token{9}, ArenaSize: 1 << 32, RdevMajor: 231, RdevMinor: 192, DaemonPid: -5, Text: "why"}).Append(nil)},
	{"request", "struct { struct vrdma_request r; struct vrdma_extent e; char c[4]; } __attribute__((packed))",
		`{{.op = VRDMA_OP_COMMAND, .command_len = 4, .nextents = 1}, {.start = 4096, .length = 5, .kind = VRDMA_EXTENT_FOREIGN, .prot = 3}, {'a', 'b', 'c', 'd'}}`,
		(&Request{Op: OpCommand, Extents: []Extent{{Start: 4096, Length: 5, Kind: ExtentForeign, Prot: 3}}, Command: []byte("abcd")}).Append(nil)},
	{"reply", "struct { struct vrdma_reply r; struct vrdma_store s; char data[8]; struct vrdma_fd f; struct vrdma_ahead a; char more[8]; }",
		`{{.error = 22, .nstores = 1, .nfds = 1, .nahead = 1}, {.address = 64, .length = 3}, {'x', 'y', 'z'}, {.address = 128, .kind = VRDMA_FD_COMP, .id = 6}, {.command = 5, .id = 7, .key = 8, .length = 2, .revision = 1ull << 40}, {'o', 'k'}}`,
		sampleReply()},
}

func sampleReply() []byte {
	var r ReplyBuilder
	r.Reset(nil)
	r.Store(64, []byte("xyz"))
	r.FD(FD{Address: 128, Kind: FDComp, ID: 6})
	r.Ahead(Ahead{Command: 5, ID: 7, Key: 8, Revision: 1 << 40, Data: []byte("ok")})
	b, _ := r.Finish(22)
	return b
}

func TestHeader(t *testing.T) {
	var src strings.Builder
	header, err := filepath.Abs("../../../shim/protocol.h")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&src, "#include <stdio.h>\n#include %q\nint main(void) {\n", header)
	for e := range twins {
		fmt.Fprintf(&src, "printf(\"%%lld %%s\\n\", (long long)(%s), %q);\n", e, e)
	}
	for _, s := range samples {
		fmt.Fprintf(&src, "{ %s v = %s; const unsigned char *p = (void *)&v; for (size_t i = 0; i < sizeof v; i++) printf(\"%%02x\", p[i]); printf(\" %s\\n\"); }\n",
			s.typ, s.init, s.name)
	}
	src.WriteString("return 0; }\n")

	dir := t.TempDir()
	file, bin := filepath.Join(dir, "header.c"), filepath.Join(dir, "header")
	if err := os.WriteFile(file, []byte(src.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-o", bin, file).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	c := map[string]string{}
	for line := range strings.Lines(string(out)) {
		value, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		c[name] = value
	}
	for name, want := range twins {
		if c[name] != fmt.Sprint(want) {
			t.Errorf("%s: C says %s, Go says %d", name, c[name], want)
		}
	}
	for _, s := range samples {
		if got := fmt.Sprintf("%x", s.got); got != c[s.name] {
			t.Errorf("%s:\n C %s\nGo %s", s.name, c[s.name], got)
		}
	}
}

// TestHeaderComplete fails when the header gains a constant that no twin covers.
func TestHeaderComplete(t *testing.T) {
	header, err := os.ReadFile("../../../shim/protocol.h")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(header)) {
		f := strings.Fields(line)
		name := ""
		switch {
		case len(f) >= 3 && f[0] == "#define" && f[2][0] == '"': // a file's name, which package sysfs checks
		case len(f) >= 3 && f[0] == "#define":
			name = f[1]
		case len(f) >= 3 && strings.HasPrefix(f[0], "VRDMA_") && f[1] == "=":
			name = f[0]
		}
		if _, ok := twins[name]; name != "" && !ok {
			t.Errorf("%s of protocol.h has no twin in this test", name)
		}
	}
}
