package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/veyra-labs/veyra-sandboxd/images"
)

func imageCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "image", Short: "List, build and remove toolchain images", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "list", Short: "List the images of this host", Args: noArguments,
			RunE: func(*cobra.Command, []string) error { return listImages(o) },
		},
		imageBuildCommand(o),
		&cobra.Command{
			Use: "gc", Short: "Remove all but the newest image of each name", Args: noArguments,
			RunE: func(cmd *cobra.Command, _ []string) error { return collectImages(cmd, o) },
		},
	)
	return cmd
}

func imageBuildCommand(o *options) *cobra.Command {
	missing := false
	cmd := &cobra.Command{
		Use: "build NAME", Short: "Build an image: " + strings.Join(images.Recipes(), ", "), Args: exactArguments(1),
		RunE: func(cmd *cobra.Command, args []string) error { return buildImage(cmd, o, args[0], missing) },
	}
	cmd.Flags().BoolVar(&missing, "missing", false, "only when there is none yet, or an older recipe made it")
	return cmd
}

func openStore(o *options) (*images.Store, error) {
	s, err := o.settings()
	if err != nil {
		return nil, err
	}
	return images.Open(filepath.Join(s.CacheDir, "images"))
}

func listImages(o *options) error {
	store, err := openStore(o)
	if err != nil {
		return err
	}
	all, err := store.List()
	if err != nil {
		return err
	}
	if o.json {
		return printJSON(append([]images.Image{}, all...))
	}
	if len(all) == 0 {
		fmt.Fprintln(os.Stderr, "no images yet; `veyra-sandboxd image build python` makes the first")
	}
	for _, image := range all {
		fmt.Printf("%-10s %s  %s  %d MB  built %s\n", image.Name, image.Digest, image.Suite, image.Bytes>>20, image.Created.Format(time.DateOnly))
	}
	return nil
}

func buildImage(cmd *cobra.Command, o *options, name string, missing bool) error {
	store, err := openStore(o)
	if err != nil {
		return err
	}
	started, build := time.Now(), store.Build
	if missing {
		build = store.Ensure
	}
	image, err := build(cmd.Context(), name, func(line string) {
		fmt.Fprintf(os.Stderr, "%5.1f s  %s\n", time.Since(started).Seconds(), line)
	})
	if err != nil {
		return err
	}
	if o.json {
		return printJSON(image)
	}
	fmt.Printf("%s %s (%s, %d MB)\n", image.Name, image.Digest, image.Suite, image.Bytes>>20)
	return nil
}

func collectImages(cmd *cobra.Command, o *options) error {
	store, err := openStore(o)
	if err != nil {
		return err
	}
	freed, err := store.GC(cmd.Context(), nil)
	if err != nil {
		return err
	}
	if o.json {
		return printJSON(map[string]int64{"freed_bytes": freed})
	}
	fmt.Printf("freed %d MB\n", freed>>20)
	return nil
}
