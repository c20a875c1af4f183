// The programs of a cluster that import Kubernetes, CoreDNS and etcd, in one: the name by which it is started says which
// of them it is. Most of their packages are the same, so they are compiled, linked and kept in memory once.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/template"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// What the clusters' Corefile uses (devcluster/lib/network.py), in CoreDNS's own order.
var plugins = []string{"bind", "errors", "cache", "template", "kubernetes"}

var kubernetes = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-proxy":              proxy.NewProxyCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	name := filepath.Base(os.Args[0])
	switch command, found := kubernetes[name]; {
	case found:
		hideFlagsOfCoreDNS()
		os.Exit(cli.Run(command()))
	case name == "coredns":
		dnsserver.Directives = plugins
		coremain.Run()
	case name == "etcd":
		etcdmain.Main(os.Args)
	default:
		fmt.Fprintf(os.Stderr, "%s is none of the programs that are in this one\n", name)
		os.Exit(2)
	}
}

// CoreDNS puts its flags into the set that Kubernetes' programs take for their own, `version` among them.
func hideFlagsOfCoreDNS() {
	of := map[string]bool{"conf": true, "dns.port": true, "p": true, "pidfile": true, "plugins": true, "quiet": true,
		"version": true}
	others := flag.NewFlagSet(os.Args[0], flag.ExitOnError)
	flag.VisitAll(func(f *flag.Flag) {
		if !of[f.Name] {
			others.Var(f.Value, f.Name, f.Usage)
		}
	})
	flag.CommandLine = others
}
