//go:build kube

package containers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestKubeChart installs the Helm chart in a real Kubernetes: pods get NICs, also by claims. An upgrade of the release
// replaces the daemon, and nothing of the release is left after its removal.
func TestKubeChart(t *testing.T) {
	helm := harness.Helm(t)
	c := newCluster(t)
	c.vrdmaImage(t)
	c.copy(t, helm, "/opt/kubelet/helm")
	c.tree(t, filepath.Join(harness.Root(), "contrib/helm/vrdma"), "/tmp/chart")
	release := func(command string, args ...string) string {
		t.Helper()
		return c.run(t, append([]string{"/opt/kubelet/helm", "--kubeconfig", "/etc/kubernetes/admin.conf", "-n", "vrdma", command, "vrdma"}, args...)...)
	}
	settings := []string{"/tmp/chart", "--set", "image.repository=localhost/vrdma,image.tag=latest,image.pullPolicy=Never,singleNode=true,dra.enabled=true"}
	release("install", append(settings, "--create-namespace")...)
	c.declareTeams(t)
	c.slots(t, "110")
	c.create(t, claimed("team-a", "server", ", network: train, address: 10.7.0.10", "", "exec ib_write_bw -R -F -n 500"))
	c.until(t, "listening", func() bool { return strings.Contains(c.vrdma(t, "status"), "LISTEN") })
	c.create(t, pod("team-a", "client", "", "exec ib_write_bw -R -F -n 500 10.7.0.10"))
	c.until(t, "both have run", func() bool {
		return c.phaseOf(t, "client") == "Succeeded" && c.phaseOf(t, "server") == "Succeeded"
	})
	release("upgrade", append(settings, "--set", "slots=7")...)
	c.slots(t, "7")
	c.create(t, pod("team-a", "later", "", "exec ibv_devinfo -d rxe0"))
	c.until(t, "a pod has run with the new release", func() bool { return c.phaseOf(t, "later") == "Succeeded" })
	release("uninstall", "--wait")
	c.until(t, "nothing is left of the release", func() bool {
		return c.kubectl(t, "get", "daemonsets,pods,services,serviceaccounts", "-n", "vrdma", "-l", "app.kubernetes.io/instance=vrdma", "--ignore-not-found") == "" &&
			c.kubectl(t, "get", "clusterroles,clusterrolebindings,deviceclasses,validatingadmissionpolicies", "-l", "app.kubernetes.io/instance=vrdma", "--ignore-not-found") == ""
	})
}

// tree copies the files of a directory into the host.
func (c *cluster) tree(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			c.run(t, "mkdir", "-p", filepath.Join(to, name))
		} else {
			c.copy(t, path, filepath.Join(to, name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
