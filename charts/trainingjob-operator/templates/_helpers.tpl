{{- define "operator.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* A file of deploy/, whose objects have a namespace and the label that kustomize gives them there. */ -}}
{{- define "operator.base" -}}
{{- $metadata := printf "metadata:\n  namespace: %s\n  labels:\n    app.kubernetes.io/name: trainingjob-operator\n" .root.Release.Namespace -}}
{{ .root.Files.Get .file | replace "\nmetadata:\n" (printf "\n%s" $metadata) }}
{{- end -}}

{{- /* The account in a binding, which kustomize gives its namespace. */ -}}
{{- define "operator.subject" -}}
{{- $account := "  - kind: ServiceAccount\n    name: trainingjob-operator\n" -}}
{{ .text | replace $account (printf "%s    namespace: %s\n" $account .root.Release.Namespace) }}
{{- end -}}
