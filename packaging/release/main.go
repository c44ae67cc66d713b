// Command release makes the parts of a release that no other tool makes: OCI images, the SBOM and the notes. make release calls it.
// It uses the standard library only: an image is a tar file of tar files and a few lines of JSON.
//
// The same input gives the same bytes: every time is that of the commit, and lists are sorted.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

const usage = `usage:
  release sbom   --name NAME --version V --epoch SECONDS --out FILE BINARY...
  release image  --name NAME --version V --commit C --epoch SECONDS --arch ARCH --description TEXT
                 --entrypoint PROGRAM --out FILE PATH=FILE...
  release notes  --version V --changelog FILE --out FILE`

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no command\n%s", usage)
	}
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	name, version, commit := f.String("name", "", ""), f.String("version", "", ""), f.String("commit", "", "")
	arch, description, entrypoint := f.String("arch", "", ""), f.String("description", "", ""), f.String("entrypoint", "", "")
	changelog, out, epoch := f.String("changelog", "CHANGELOG.md", ""), f.String("out", "", ""), f.Int64("epoch", 0, "")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	when := time.Unix(*epoch, 0).UTC()
	var text []byte
	var err error
	switch args[0] {
	case "sbom":
		text, err = sbomOf(*name, *version, when, f.Args())
	case "notes":
		var log []byte
		if log, err = os.ReadFile(*changelog); err == nil {
			text, err = notes(string(log), *version)
		}
	case "image":
		i := image{Name: *name, Version: *version, Commit: *commit, Created: when, Arch: *arch, Description: *description, Entrypoint: *entrypoint}
		if i.Files, err = filesOf(f.Args()); err != nil {
			return err
		}
		var digest string
		if text, digest, err = i.archive(); err == nil {
			fmt.Printf("%s  %s\n", digest, filepath.Base(*out))
		}
	default:
		return fmt.Errorf("no command %q\n%s", args[0], usage)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(*out, text, 0o644)
}

// filesOf reads the files of an image: PATH=FILE each.
func filesOf(args []string) (files []file, err error) {
	for _, arg := range args {
		to, from, found := strings.Cut(arg, "=")
		if !found || to == "" || strings.HasPrefix(to, "/") {
			return nil, fmt.Errorf("%s: write PATH=FILE, with the path in the image, without a first slash", arg)
		}
		text, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		info, err := os.Stat(from)
		if err != nil {
			return nil, err
		}
		mode := int64(0o644)
		if info.Mode()&0o100 != 0 {
			mode = 0o755
		}
		files = append(files, file{to, mode, text})
	}
	return files, nil
}
