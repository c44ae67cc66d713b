// Package page tests the report's page in a browser, a headless Chromium.
package page

import (
	"encoding/json"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/report"
	"vrdma.dev/vrdma/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// look is a script at the end of the page. It does what a reader does and records what it sees.
const look = `
<script>
addEventListener('load', () => {
  const lum = c => { const [r, g, b] = c.match(/[\d.]+/g).map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const contrast = (a, b) => { const x = lum(a), y = lum(b); return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05); };
  const body = getComputedStyle(document.body);
  const saw = {figures: [], wide: [], contrast: contrast(body.color, body.backgroundColor), dark: lum(body.backgroundColor) < 0.2, width: innerWidth, soft: 21, lines: 21, text: 0};
  for (const f of document.querySelectorAll('figure svg.plot')) { const r = f.getBoundingClientRect(); saw.figures.push([r.width, r.height]); }
  for (const e of document.querySelectorAll('p, li, h1, h2, h3, figcaption, label, summary, figure')) {
    const r = e.getBoundingClientRect();
    if (r.right > document.documentElement.clientWidth + 1) saw.wide.push(e.tagName + ': ' + e.textContent.slice(0, 40));
  }
  for (const t of document.querySelectorAll('svg.plot text')) {
    if (getComputedStyle(t).display === 'none') continue;
    const r = t.getBoundingClientRect(), p = t.closest('svg').getBoundingClientRect();
    if (r.left < p.left - 1 || r.right > p.right + 1) saw.wide.push('text: ' + t.textContent);
  }
  for (const t of document.querySelectorAll('.why, figcaption')) saw.soft = Math.min(saw.soft, contrast(getComputedStyle(t).color, body.backgroundColor));
  for (const t of document.querySelectorAll('.line polyline')) saw.lines = Math.min(saw.lines, contrast(getComputedStyle(t).stroke, body.backgroundColor));
  saw.scroll = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  saw.first = document.querySelector('.first').getBoundingClientRect().bottom;
  for (const e of document.querySelectorAll('.first > p, .first > ol')) saw.text += e.getBoundingClientRect().height / parseFloat(getComputedStyle(e).lineHeight);
  const labels = [...document.querySelectorAll('svg.plot')].map(p => [...p.querySelectorAll('.direct')].filter(e => getComputedStyle(e).display !== 'none').map(e => e.getBoundingClientRect()));
  for (const list of labels) for (const a of list) for (const b of list) if (a !== b && a.top < b.top && a.bottom > b.top + 3) saw.wide.push('names overlap');
  saw.direct = labels.flat().length;
  const box = document.querySelector('.legend input');
  const line = () => getComputedStyle(box.closest('figure').querySelector('.plot [data-line="' + box.dataset.line + '"]')).display;
  saw.before = line(); box.click(); saw.off = line(); box.click(); saw.again = line();
  const hit = document.querySelector('.hit');
  hit.dispatchEvent(new PointerEvent('pointermove', {clientX: 10, clientY: 10}));
  saw.tip = document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent;
  hit.dispatchEvent(new PointerEvent('pointerleave'));
  saw.gone = document.getElementById('tip').hidden;
  parent.postMessage(JSON.stringify(saw), '*');
});
</script>`

// frame shows the page in a frame, because Chromium makes no window that narrow. It writes the script's records into
// the document.
const frame = `<!doctype html><meta charset="utf-8"><body style="margin:0"><script>
addEventListener('message', e => {
  const out = document.createElement('pre');
  out.id = 'saw';
  out.textContent = e.data;
  document.body.append(out);
});
</script><iframe src="report.html" width="%d" height="900" style="border:0"></iframe>`

// saw is the record of look.
type saw struct {
	Figures                       [][2]float64
	Wide                          []string
	Contrast, Soft, Lines, Scroll float64
	First, Text                   float64 // the end of the first screen in pixels, and its lines of text
	Direct                        int     // names beside lines
	Width                         int
	Dark                          bool
	Before, Off, Again            string
	Tip                           string
	Gone                          bool
}

var found = regexp.MustCompile(`(?s)<pre id="saw">(.*?)</pre>`)

// printed prints the page. Paper has what the screen folds: the tables of values.
func printed(t *testing.T, page string) {
	harness.Need(t, "pdftotext")
	pdf := filepath.Join(filepath.Dir(page), "report.pdf")
	harness.Spawn(t, harness.Chromium(t, "--print-to-pdf="+pdf, "--no-pdf-header-footer", "file://"+page)).OK(t, 5*time.Minute)
	text := harness.Spawn(t, exec.Command("pdftotext", "-layout", pdf, "-"))
	text.OK(t, time.Minute)
	head := regexp.MustCompile(`what\s+size\s+pairs\s+median\s+interval\s+coverage`)
	if !head.MatchString(text.Stdout()) {
		t.Errorf("no table of values is printed:\n%s", text.Stdout())
	}
}

// open opens the page in a window and returns the record.
func open(t *testing.T, page string, width int, args ...string) saw {
	t.Helper()
	around := filepath.Join(filepath.Dir(page), fmt.Sprintf("frame-%d.html", width))
	if err := os.WriteFile(around, fmt.Appendf(nil, frame, width), 0o644); err != nil {
		t.Fatal(err)
	}
	args = append(args, "--window-size=1400,1000", "--virtual-time-budget=2000", "--dump-dom", "file://"+around)
	p := harness.Spawn(t, harness.Chromium(t, args...))
	p.OK(t, 5*time.Minute)
	if strings.Contains(p.Output(), "CONSOLE") {
		t.Errorf("the console has messages:\n%s", harness.Tail(p.Output(), 20))
	}
	m := found.FindStringSubmatch(p.Stdout())
	if m == nil {
		t.Fatalf("the page's script did not run:\n%s", harness.Tail(p.Output(), 20))
	}
	var s saw
	if err := json.Unmarshal([]byte(html.UnescapeString(m[1])), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestPage: the page of a real run is readable on wide and narrow screens, in light and dark mode. Lines can be
// switched off, and points have labels.
func TestPage(t *testing.T) {
	r, err := experiment.Read("testdata")
	if err != nil {
		t.Fatal(err)
	}
	check(t, r, views)
}

// TestEverySuite: the page of all suites is readable, too. Its values are invented. It is large, so the short form has
// one view.
func TestEverySuite(t *testing.T) {
	night := view{"narrow, dark", 400, true}
	check(t, invented(t), harness.Pick([]view{night}, append(views, night)))
}

// A view is a window's size and colour scheme.
type view struct {
	name  string
	width int
	dark  bool
}

var views = []view{{"wide", 1280, false}, {"narrow", 400, false}, {"dark", 1280, true}}

// invented are results of all suites: a cell costs a fixed time for each byte and each message, and guests are missing.
func invented(t *testing.T) *experiment.Results {
	t.Helper()
	all, err := experiment.Suites()
	if err != nil {
		t.Fatal(err)
	}
	r := &experiment.Results{Header: experiment.Header{Version: experiment.Version, Program: "a test", Seed: 1, Machine: experiment.Machine{Processor: "Z80", Processors: 2, Kernel: "Linux 1.0"}}}
	for _, e := range all {
		text, err := e.Text()
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Experiments = append(r.Header.Experiments, string(text))
		for round := range 3 {
			for _, c := range e.Cells() {
				r.Records = append(r.Records, invent(e.Name, c, round+1))
			}
		}
	}
	return r
}

func invent(name string, c experiment.Cell, round int) experiment.Record {
	rec := experiment.Record{Experiment: name, Cell: c, Round: round}
	if c.Setting == experiment.VMs {
		rec.Failed = "setting vms cannot be measured by this version"
		return rec
	}
	base := map[string]float64{experiment.TCP: 20e-6, experiment.Verbs: 3e-6, experiment.Sockets: 8e-6, experiment.Kernel: 40e-6, experiment.Overlay: 30e-6}[c.Transport]
	if c.Setting == experiment.Hosts {
		base *= 3
	}
	if c.Wait == experiment.Event {
		base *= 2
	}
	size := max(float64(c.Size), 1)
	each := (base + size/4e9) * (1 + float64(round)/50)
	limit := 20e9
	if c.Rate != "" {
		limit = 118e6
	}
	bandwidth := min(size/each*8, limit/2)
	rec.Values = map[string]float64{experiment.Latency: each, "p99": 3 * each, experiment.Bandwidth: bandwidth, experiment.Rate: 1 / each, experiment.Time: size / bandwidth}
	if c.Pairs > 1 {
		rec.Values["slowest"], rec.Values["fairness"] = 0.8, 0.98
	}
	rec.CPU = map[string]float64{"client": 1, "server": 0.5, "daemon": 0.7, "machine": 2.2}
	rec.Seconds, rec.Samples, rec.Bytes, rec.MTU, rec.Limit, rec.LimitOf = 1.1, 10000, bandwidth, 4096, limit, "a copy in memory by 2 processors, measured in this run"
	rec.Proof, rec.Idle = "the device's counters: 1 GiB sent", 0.001
	return rec
}

// check looks at the page of some results.
func check(t *testing.T, r *experiment.Results, views []view) {
	t.Helper()
	figures, err := report.Gather(r)
	if err != nil {
		t.Fatal(err)
	}
	plots := 0
	for _, f := range figures {
		plots += f.Drawings()
	}
	findings, chosen := report.Findings(figures)
	if len(findings) != 3 || chosen == nil {
		t.Fatalf("findings: %q", findings)
	}
	plots++ // of the first screen
	var b strings.Builder
	if err := report.HTML(&b, r, figures); err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(t.TempDir(), "report.html")
	if keep := os.Getenv("VRDMA_KEEP_PAGE"); keep != "" { // to look at it
		page = filepath.Join(keep, "report.html")
	}
	if err := os.WriteFile(page, []byte(strings.Replace(b.String(), "</body>", look+"</body>", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Run("print", func(t *testing.T) { printed(t, page) })
	for _, view := range views {
		t.Run(view.name, func(t *testing.T) {
			scheme := 1
			if view.dark {
				scheme = 0
			}
			s := open(t, page, view.width, fmt.Sprintf("--blink-settings=preferredColorScheme=%d", scheme))
			if s.Width != view.width {
				t.Errorf("the window is %d pixels wide, want %d", s.Width, view.width)
			}
			if len(s.Figures) != plots {
				t.Errorf("%d figures, want %d", len(s.Figures), plots)
			}
			for _, f := range s.Figures {
				if f[0] < 300 || f[1] < 40 {
					t.Errorf("a figure of %v pixels", f)
				}
			}
			if narrow := view.width < 600; !narrow && (s.First > 1000 || s.Text > 10.5) || (s.Direct == 0) != narrow {
				t.Errorf("the first screen ends at %.0f pixels, with %.1f lines of text; %d lines have names", s.First, s.Text, s.Direct)
			}
			if len(s.Wide) > 0 || s.Scroll > 0 {
				t.Errorf("%v pixels too wide: %q", s.Scroll, s.Wide)
			}
			if s.Contrast < 7 || s.Soft < 4.5 || s.Lines < 2.5 || s.Dark != view.dark {
				t.Errorf("dark %v, contrast %.1f of text, %.1f of remarks, %.1f of lines", s.Dark, s.Contrast, s.Soft, s.Lines)
			}
			if s.Before == "none" || s.Off != "none" || s.Again != s.Before {
				t.Errorf("a line that is switched: %q, %q, %q", s.Before, s.Off, s.Again)
			}
			if !strings.Contains(s.Tip, ": ") || !s.Gone {
				t.Errorf("pointing at a point says %q, and is gone after: %v", s.Tip, s.Gone)
			}
		})
	}
}
