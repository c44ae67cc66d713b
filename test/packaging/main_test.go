// Package packaging installs what make package and make release build: packages in clean Debian roots, images in a container
// engine, the chart in Helm.
package packaging

import (
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

const minute = time.Minute
