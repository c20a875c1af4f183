//! What operators log, by namespace.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// One line.
#[derive(Clone)]
pub struct Line {
    pub level: Level,
    pub text: String,
}

/// Lines by namespace. Lines without a namespace are under the empty name.
#[derive(Clone, Default)]
pub struct Log {
    lines: Arc<Mutex<HashMap<String, Vec<Line>>>>,
}

impl Log {
    /// The log of this process from here on. All callers get the same one.
    pub fn start() -> Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        let start = || {
            let log = Self::default();
            let subscriber = tracing_subscriber::registry().with(log.clone());
            tracing::subscriber::set_global_default(subscriber).expect("one log for each process");
            log
        };
        LOG.get_or_init(start).clone()
    }

    pub fn forget(&self, namespace: &str) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).remove(namespace);
    }

    pub fn in_namespace(&self, namespace: &str) -> Vec<Line> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.get(namespace).cloned().unwrap_or_default()
    }
}

/// The field `namespace` of a span.
struct Namespace(String);

#[derive(Default)]
struct Fields {
    namespace: Option<String>,
    text: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "namespace" => self.namespace = Some(format!("{value:?}").trim_matches('"').to_owned()),
            "message" => self.text = format!("{value:?} {}", self.text),
            name => drop(write!(self.text, "{name}={value:?} ")),
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Log {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let ours = metadata.target().starts_with("trainingjob_operator") && *metadata.level() <= Level::DEBUG;
        ours || *metadata.level() <= Level::WARN
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let (Some(namespace), Some(span)) = (fields.namespace, context.span(id)) {
            span.extensions_mut().insert(Namespace(namespace));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let of_span = || {
            let scope = context.event_scope(event)?;
            scope.into_iter().find_map(|span| span.extensions().get::<Namespace>().map(|n| n.0.clone()))
        };
        let namespace = fields.namespace.or_else(of_span).unwrap_or_default();
        let line = Line { level: *event.metadata().level(), text: fields.text };
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).entry(namespace).or_default().push(line);
    }
}
