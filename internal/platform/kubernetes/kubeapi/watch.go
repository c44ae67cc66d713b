package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// A Listener receives the contents of a list. One goroutine calls it, in order.
type Listener interface {
	// Replace is called with all objects.
	Replace(objects []json.RawMessage) error
	// Put is called with an object that is new or has changed.
	Put(object json.RawMessage) error
	// Delete is called with the last version of a deleted object.
	Delete(object json.RawMessage) error
}

// Pauses before the next watch double each time, until a watch delivers something.
const (
	shortest = 100 * time.Millisecond
	longest  = 10 * time.Second
)

// Follow tells a listener the objects at a path, now and whenever they change, until ctx ends. query selects. It
// reports an error once, and tries again.
func (c *Client) Follow(ctx context.Context, path string, query url.Values, l Listener, say func(error)) {
	first := c.pause
	if first == 0 {
		first = shortest
	}
	version, pause, said := "", first, ""
	for ctx.Err() == nil {
		var err error
		if version == "" {
			version, err = c.list(ctx, path, query, l)
		}
		if err == nil {
			began, heard := time.Now(), false
			version, heard, err = c.watch(ctx, path, query, version, l)
			if heard || err == nil && time.Since(began) > longest {
				pause, said = first, ""
			}
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrGone):
			version = ""
		case err != nil && err.Error() != said:
			said = err.Error()
			say(err)
		}
		// The jitter spreads the many clients of a server that comes back.
		timer := time.NewTimer(pause + rand.N(pause/2))
		pause = min(2*pause, longest)
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
}

func (c *Client) list(ctx context.Context, path string, query url.Values, l Listener) (version string, err error) {
	var all struct {
		Metadata struct {
			Version string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []json.RawMessage `json:"items"`
	}
	if err := c.Get(ctx, path+"?"+query.Encode(), &all); err != nil {
		return "", err
	}
	if all.Metadata.Version == "" {
		return "", fmt.Errorf("%s%s: the list has no version", c.URL, path)
	}
	if err := l.Replace(all.Items); err != nil {
		return "", err
	}
	return all.Metadata.Version, nil
}

// Version reads a resourceVersion. Versions of one kind of object are growing numbers, so that an event of a watch can
// be older than a received answer. A version that is no number counts as newer than any.
func Version(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return math.MaxUint64
	}
	return n
}

// An event is a line of a watch.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// watch follows changes from a version on. It returns the last version that was delivered ("": unknown, list again),
// whether anything was received, and nil if the server has ended the watch.
func (c *Client) watch(ctx context.Context, path string, query url.Values, from string, l Listener) (version string, heard bool, err error) {
	limit := c.Watch
	if limit == 0 {
		limit = 4 * time.Minute
	}
	q := url.Values{}
	for name, values := range query {
		q[name] = values
	}
	q.Set("watch", "1")
	q.Set("allowWatchBookmarks", "true")
	q.Set("resourceVersion", from)
	q.Set("timeoutSeconds", strconv.Itoa(max(1, int(limit/time.Second))))
	ctx, cancel := context.WithTimeout(ctx, limit+min(limit, 30*time.Second))
	defer cancel()
	answer, err := c.do(ctx, http.MethodGet, path+"?"+q.Encode(), nil)
	if err != nil {
		return from, false, err
	}
	defer answer.Body.Close()
	version = from
	bounded := &bounded{answer.Body, largest}
	for d := json.NewDecoder(bounded); ; {
		var e event
		if err := d.Decode(&e); err != nil {
			if errors.Is(err, io.EOF) {
				return version, heard, nil
			}
			return version, heard, fmt.Errorf("%s%s: the watch has ended: %w", c.URL, path, err)
		}
		bounded.left = largest
		now, err := tell(&e, l)
		if err != nil {
			// An event that was not understood or accepted cannot be skipped: list again.
			return "", heard, fmt.Errorf("%s%s: %w", c.URL, path, err)
		}
		version, heard = now, true
	}
}

// tell delivers one event, and returns its version.
func tell(e *event, l Listener) (version string, err error) {
	if e.Type == "ERROR" {
		var why status
		if err := json.Unmarshal(e.Object, &why); err != nil {
			return "", err
		}
		if why.Code == http.StatusGone {
			return "", ErrGone
		}
		return "", fmt.Errorf("the watch fails: %d %s", why.Code, why.Message)
	}
	var o struct {
		Metadata struct {
			Version string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(e.Object, &o); err != nil {
		return "", fmt.Errorf("the watch event %s has no valid object: %w", e.Type, err)
	}
	if o.Metadata.Version == "" {
		return "", fmt.Errorf("the watch event %s has an object without a version", e.Type)
	}
	switch e.Type {
	case "ADDED", "MODIFIED":
		err = l.Put(e.Object)
	case "DELETED":
		err = l.Delete(e.Object)
	case "BOOKMARK":
	default:
		err = fmt.Errorf("the watch has an unknown event %q", e.Type)
	}
	return o.Metadata.Version, err
}

// bounded reads a limited number of bytes, until left is set again. One event is smaller.
type bounded struct {
	r    io.Reader
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errors.New("an event is too large")
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
