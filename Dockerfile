# The operator's image, which also brings the agent into the workers' pods: mounted there as a volume, or copied out of it by
# an init container. What is in it is what `agent install` makes, with the operator: /agent, /python for the programs' Pythons,
# and the empty /state, over which each pod has a volume of its own. Static programs; build context is dist/image after
# `make binaries`.
FROM scratch
COPY . /
USER 65532:65532
ENTRYPOINT ["/operator"]
