package kubeapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A Client talks to one server: the API server of a cluster, or a kubelet's read-only port.
type Client struct {
	URL   string // without a final /
	Token string // a file, because the token is replaced now and then; "": none
	HTTP  *http.Client
	// Answer bounds the time of an answer that is not a watch; five seconds if zero.
	Answer time.Duration
	// Watch is the duration that the client requests for a watch; four minutes if zero. A watch that does not end half
	// a minute later (or as long again, if that is shorter) is dead.
	Watch time.Duration

	pause time.Duration // before the second watch; shortest if zero
}

// Errors that are answers. Other errors mean that the server does not answer now.
var (
	ErrNotFound = errors.New("there is no such object")
	ErrConflict = errors.New("another client has changed the object")
	ErrGone     = errors.New("the version is too old")
)

// accounts is the directory of a pod's credentials for the API server.
const accounts = "/var/run/secrets/kubernetes.io/serviceaccount"

// InCluster is the API server of this pod's cluster.
func InCluster() (*Client, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("KUBERNETES_SERVICE_HOST is not set, so this is not a pod: name the API server's address")
	}
	return With("https://"+net.JoinHostPort(host, port), filepath.Join(accounts, "token"), filepath.Join(accounts, "ca.crt"))
}

// With is a server that requires a token and has a certificate of an authority. Both are files.
func With(base, token, ca string) (*Client, error) {
	c, err := At(base)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, errors.New(ca + " has no certificate")
	}
	c.Token = token
	c.HTTP.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true, TLSHandshakeTimeout: answerTime, IdleConnTimeout: time.Minute}
	return c, nil
}

// At is a server without a token, such as a kubelet's read-only port.
func At(base string) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("%q: write it like http://127.0.0.1:10255", base)
	}
	return &Client{URL: strings.TrimRight(base, "/"), HTTP: &http.Client{}}, nil
}

const (
	answerTime = 5 * time.Second
	largest    = 64 << 20 // bytes of an answer: lists have some hundred pods
)

// Path joins the parts of an object's path and escapes them.
func Path(prefix string, parts ...string) string {
	for _, p := range parts {
		prefix += "/" + url.PathEscape(p)
	}
	return prefix
}

// Get reads an object, or a list.
func (c *Client) Get(ctx context.Context, path string, into any) error {
	return c.call(ctx, http.MethodGet, path, nil, into)
}

// Create creates an object, and reads the result. ErrConflict: one of that name exists.
func (c *Client) Create(ctx context.Context, path string, object, into any) error {
	return c.call(ctx, http.MethodPost, path, object, into)
}

// Update replaces an object, and reads the result. ErrConflict: it is not the version that was read.
func (c *Client) Update(ctx context.Context, path string, object, into any) error {
	return c.call(ctx, http.MethodPut, path, object, into)
}

// Delete deletes an object. ErrNotFound: it does not exist.
func (c *Client) Delete(ctx context.Context, path string) error {
	return c.call(ctx, http.MethodDelete, path, nil, nil)
}

func (c *Client) call(ctx context.Context, method, path string, from, into any) error {
	limit := c.Answer
	if limit == 0 {
		limit = answerTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer, err := c.do(ctx, method, path, from)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, largest))
	if err != nil {
		return err
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s%s: %w", c.URL, path, err)
	}
	return nil
}

// do sends a request and returns a successful answer.
func (c *Client) do(ctx context.Context, method, path string, from any) (*http.Response, error) {
	var body io.Reader
	if from != nil {
		text, err := json.Marshal(from)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.URL+path, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	if from != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.Token != "" {
		token, err := os.ReadFile(c.Token)
		if err != nil {
			return nil, err
		}
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	answer, err := c.HTTP.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode/100 == 2 {
		return answer, nil
	}
	defer answer.Body.Close()
	var why status
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	json.Unmarshal(text, &why) // a proxy's answer is no status: the code has to suffice
	return nil, c.refused(answer.StatusCode, path, &why)
}

// A status is the API server's answer instead of an object.
type status struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (c *Client) refused(code int, path string, why *status) error {
	message := why.Message
	if message == "" {
		message = http.StatusText(code)
	}
	path, _, _ = strings.Cut(path, "?")
	var err error
	switch code {
	case http.StatusNotFound:
		err = ErrNotFound
	case http.StatusConflict:
		err = ErrConflict
	case http.StatusGone:
		err = ErrGone
	case http.StatusForbidden, http.StatusUnauthorized:
		return fmt.Errorf("%s%s: %d %s: the service account lacks a right (contrib/kubernetes has the role)", c.URL, path, code, message)
	default:
		return fmt.Errorf("%s%s: %d %s", c.URL, path, code, message)
	}
	return fmt.Errorf("%s%s: %w: %s", c.URL, path, err, message)
}
