package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// The file and the memory give the same answers to the same commits, and the file also after it was closed.
func TestBoltIsMemory(t *testing.T) {
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		path := filepath.Join(t.TempDir(), "store")
		model, s := &Memory{}, openTest(t, path)
		a, b := model.Watch("k1", 1), s.Watch("k1", 1)
		for step := range 150 {
			conditions, writes := randomCommit(rnd)
			r1, ok1, err1 := model.Commit(conditions, writes)
			r2, ok2, err2 := s.Commit(conditions, writes)
			if r1 != r2 || ok1 != ok2 || (err1 == nil) != (err2 == nil) {
				t.Fatalf("seed %d step %d: memory says %d, %v, %v, the file %d, %v, %v", seed, step, r1, ok1, err1, r2, ok2, err2)
			}
			if rnd.IntN(20) == 0 {
				s.Close()
				s = openTest(t, path)
				_, r := mustList(t, s, "")
				if r > 0 {
					if _, err := next(t, s.Watch("", r)); !errors.Is(err, ErrCompacted) {
						t.Fatalf("changes from before it was opened: %v", err)
					}
				}
				a, b = model.Watch("k1", r+1), s.Watch("k1", r+1)
			}
			prefix := []string{"", "k", "k1", "none"}[rnd.IntN(4)]
			l1, r1 := mustList(t, model, prefix)
			l2, r2 := mustList(t, s, prefix)
			if l1 != l2 || r1 != r2 {
				t.Fatalf("seed %d step %d: memory has\n%s at %d, the file\n%s at %d", seed, step, l1, r1, l2, r2)
			}
		}
		mustCommit(t, model, put("k1", "end"))
		mustCommit(t, s, put("k1", "end"))
		for {
			x, err1 := next(t, a)
			y, err2 := next(t, b)
			if err1 != nil || err2 != nil || !reflect.DeepEqual(x, y) {
				t.Fatalf("seed %d: watches differ: at %d, %v and at %d, %v", seed, x.Revision, err1, y.Revision, err2)
			}
			if string(x.Changes[0].Value) == "end" {
				break
			}
		}
		s.Close()
	}
}

func randomCommit(rnd *rand.Rand) (conditions []Condition, writes []Write) {
	key := func() string { return fmt.Sprintf("k%d", rnd.IntN(30)) }
	for range rnd.IntN(2) {
		conditions = append(conditions, Condition{key(), int64(rnd.IntN(20))})
	}
	for range rnd.IntN(12) {
		w := Write{Key: key(), Delete: rnd.IntN(3) == 0}
		if !w.Delete {
			w.Value = bytes.Repeat([]byte{'x'}, rnd.IntN(3000))
		}
		writes = append(writes, w)
	}
	return conditions, writes
}

// killedEnv makes the test binary commit to a file until it is killed.
const killedEnv = "VRDMA_TEST_STORE"

func TestMain(m *testing.M) {
	if path := os.Getenv(killedEnv); path != "" {
		commitForEver(path)
	}
	lockTime = 50 * time.Millisecond
	os.Exit(m.Run())
}

// killedKeys is the number of keys that each commit writes, all with the same value.
const killedKeys = 300

func killedWrites(n int) []Write {
	var writes []Write
	for i := range killedKeys {
		writes = append(writes, put(fmt.Sprintf("k%03d", i), strconv.Itoa(n)))
	}
	return writes
}

// commitForEver prints the number of each commit.
func commitForEver(path string) {
	s, _, err := Open(path)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	n := 0
	if list, _, _ := s.List("k000"); len(list) > 0 {
		n, _ = strconv.Atoi(string(list[0].Value))
	}
	for {
		n++
		if _, ok, err := s.Commit(nil, killedWrites(n)); !ok || err != nil {
			fmt.Println(ok, err)
			os.Exit(1)
		}
		fmt.Println(n)
	}
}

// A store whose daemon was killed at any moment has the last acknowledged commit, or all of the next one.
func TestKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	last := 0
	for round := range 12 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killedEnv+"="+path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for range 1 + rand.IntN(4) {
			if !lines.Scan() {
				break
			}
			if last, err = strconv.Atoi(lines.Text()); err != nil {
				t.Errorf("the child says %q", lines.Text())
			}
		}
		time.Sleep(time.Duration(rand.IntN(5000)) * time.Microsecond) // somewhere in a commit
		cmd.Process.Kill()
		for lines.Scan() {
			if n, err := strconv.Atoi(lines.Text()); err == nil {
				last = n
			}
		}
		cmd.Wait()

		s := openTest(t, path)
		list, revision, err := s.List("")
		if err != nil || len(list) != killedKeys {
			t.Fatalf("round %d: %d entries, want %d: %v", round, len(list), killedKeys, err)
		}
		for _, e := range list {
			if string(e.Value) != string(list[0].Value) || e.Revision != revision {
				t.Fatalf("round %d: half of a commit: %s and %s", round, texts(list[:1]), texts([]Entry{e}))
			}
		}
		if n, _ := strconv.Atoi(string(list[0].Value)); n != last && n != last+1 {
			t.Fatalf("round %d: it has commit %d, and %d was acknowledged", round, n, last)
		}
		s.Close()
	}
}

// A file that another program wrote: invalid entries are left out and reported.
func TestHostileEntries(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := openTest(t, path)
	mustCommit(t, s, put("good", "1"))
	s.Close()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	at := func(revision uint64, value string) []byte {
		return append(binary.BigEndian.AppendUint64(nil, revision), value...)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketEntries)
		_, err := b.CreateBucket([]byte("a bucket"))
		return errors.Join(err,
			b.Put([]byte("short"), []byte("x")),
			b.Put([]byte("zero"), at(0, "x")),
			b.Put([]byte("huge revision"), at(1<<63, "x")),
			b.Put([]byte("huge value"), at(1, strings.Repeat("x", MaxValue+1))),
			b.Put([]byte(strings.Repeat("k", MaxKey+1)), at(1, "x")),
			b.Put([]byte("later"), at(77, "x")),
		)
	})
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	s, problems, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if len(problems) != 6 {
		t.Errorf("%d problems, want 6: %v", len(problems), problems)
	}
	if got, r := mustList(t, s, ""); got != "good=1@1 later=x@77" || r != 77 {
		t.Errorf("it has %q at %d", got, r)
	}
	if r := mustCommit(t, s, put("good", "2")); r != 78 {
		t.Errorf("the next revision is %d", r)
	}
}

// Opening a file changes nothing in it.
func TestOpenWritesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := openTest(t, path)
	mustCommit(t, s, put("a", "1"))
	s.Close()
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	openTest(t, path).Close()
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
		t.Errorf("opening the file has changed it (%v): a full disk or a quota would keep the daemon from starting", err)
	}
}

// A newer format, another file, a link, others' files: each is refused with the reason.
func TestOpenRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "store")
	first := openTest(t, path)
	mustCommit(t, first, put("a", "1"))
	first.Close()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketState).Put(keyFormat, []byte{format + 1}) })
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	link, text, open := filepath.Join(dir, "link"), filepath.Join(dir, "text"), filepath.Join(dir, "open")
	os.Symlink(path, link)
	os.WriteFile(text, []byte(strings.Repeat("not a store\n", 1000)), 0o600)
	os.WriteFile(open, nil, 0o600)
	os.Chmod(open, 0o666)
	for name, want := range map[string]string{path: "newer", link: "symbolic", text: "cannot be read", open: "others can write", dir: "directory"} {
		s, _, err := Open(name)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want it to say %q", filepath.Base(name), err, want)
		}
	}
	other := filepath.Join(dir, "other")
	s, late := openTest(t, other), openTest(t, other)
	if _, err := os.Lstat(other); err == nil {
		t.Error("a store that was not written to has a file")
	}
	mustCommit(t, s, put("a", "1"))
	if _, _, err := late.Commit(nil, []Write{put("b", "1")}); err == nil || !strings.Contains(err.Error(), "another daemon") {
		t.Errorf("two daemons begin the same file: %v", err)
	}
	if _, _, err := Open(other); err == nil || !strings.Contains(err.Error(), "another daemon") {
		t.Errorf("a file that is open: %v", err)
	}
	s.Close()
	if _, _, err := late.Commit(nil, []Write{put("b", "1")}); err == nil || !strings.Contains(err.Error(), "meanwhile") {
		t.Errorf("another daemon began the file and is gone: %v", err)
	}
}

// Truncating the file while it is open breaks the store, not the daemon.
func TestCutShort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := openTest(t, path)
	for i := range 50 {
		mustCommit(t, s, put(fmt.Sprintf("k%d", i), strings.Repeat("x", 10000)))
	}
	if err := os.Truncate(path, 8192); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		if _, _, err := s.Commit(nil, []Write{del(fmt.Sprintf("k%d", i))}); err != nil {
			if _, _, again := s.Commit(nil, []Write{put("k", "")}); again == nil {
				t.Error("then it works")
			}
			if list, _, err := s.List("k"); err != nil || len(list) == 0 {
				t.Errorf("and it cannot be read: %v", err)
			}
			return
		}
	}
	t.Log("bbolt did not notice")
}

// Damage anywhere in the file is an error, a reported problem, or without effect.
func FuzzDamaged(f *testing.F) {
	path := filepath.Join(f.TempDir(), "store")
	s, _, err := Open(path)
	if err != nil {
		f.Fatal(err)
	}
	for i := range 20 {
		mustCommit(f, s, put(fmt.Sprintf("spec/%d", i), strings.Repeat("x", 500)))
	}
	s.Close()
	good, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(0), []byte{1})
	f.Add(uint32(4096), []byte("damaged"))
	f.Add(uint32(8192), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	for i := range uint32(64) {
		f.Add(i*uint32(len(good)/64), []byte{0xff, 0, 0xff, byte(i)})
	}
	for i := range uint32(len(good) / os.Getpagesize()) { // the number of pages behind this one
		f.Add(i*uint32(os.Getpagesize())+12, []byte{0x30, 0, 0xff, 0xff})
	}
	f.Fuzz(func(t *testing.T, at uint32, damage []byte) {
		bad := bytes.Clone(good)
		copy(bad[int(at)%len(bad):], damage)
		path := filepath.Join(t.TempDir(), "store")
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s, _, err := Open(path)
		if err != nil {
			return
		}
		s.List("")
		s.Commit(nil, []Write{put("spec/1", "new"), put("a", "")})
		s.Close()
	})
}

// Files whose entries take many pages, or have been replaced and deleted often, are not taken for damaged.
func TestLargeEntries(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	path := filepath.Join(t.TempDir(), "store")
	for range 30 {
		s, problems, err := Open(path)
		if err != nil || len(problems) != 0 {
			t.Fatal(problems, err)
		}
		for range 10 {
			key := fmt.Sprintf("spec/%d", rng.IntN(20))
			if rng.IntN(4) == 0 {
				mustCommit(t, s, del(key))
			} else {
				mustCommit(t, s, put(key, strings.Repeat("x", rng.IntN(100_000))))
			}
		}
		s.Close()
	}
}
