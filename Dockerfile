# The operator's image, which also carries the agent that its init containers copy into the workers' pods.
# Both are static programs: build context is a folder with the two, dist/ after `make image`.
FROM scratch
COPY operator agent /
USER 65532:65532
ENTRYPOINT ["/operator"]
