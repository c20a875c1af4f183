//! Pickles, read as a list of opcodes. Nothing is imported, called or made except the tree of written values.
//!
//! Protocols 2 to 5, as Python's own `pickletools` describes them. Shared values stay shared and are never copied. So
//! neither a cycle nor a pickle that doubles itself costs more than its length.

use super::fault::Fault;
use std::io;

/// Longest pickle that is read, in bytes.
pub const LIMIT: u64 = 64 << 20;
/// Maximum memory of the values made from a pickle, in bytes. With the pickle itself it fits into the 256 MiB of the
/// container that manages checkpoints while no worker runs.
const MEMORY: usize = 96 << 20;
/// What an allocator needs for each of its pieces, in bytes.
const PIECE: usize = 16;

/// The opcodes, by the names that `pickletools` gives them.
mod op {
    pub const MARK: u8 = b'(';
    pub const EMPTY_TUPLE: u8 = b')';
    pub const STOP: u8 = b'.';
    pub const POP: u8 = b'0';
    pub const POP_MARK: u8 = b'1';
    pub const DUP: u8 = b'2';
    pub const BINBYTES: u8 = b'B';
    pub const SHORT_BINBYTES: u8 = b'C';
    pub const BINFLOAT: u8 = b'G';
    pub const BININT: u8 = b'J';
    pub const BININT1: u8 = b'K';
    pub const BININT2: u8 = b'M';
    pub const NONE: u8 = b'N';
    pub const BINPERSID: u8 = b'Q';
    pub const REDUCE: u8 = b'R';
    pub const BINSTRING: u8 = b'T';
    pub const SHORT_BINSTRING: u8 = b'U';
    pub const BINUNICODE: u8 = b'X';
    pub const EMPTY_LIST: u8 = b']';
    pub const APPEND: u8 = b'a';
    pub const BUILD: u8 = b'b';
    pub const GLOBAL: u8 = b'c';
    pub const DICT: u8 = b'd';
    pub const APPENDS: u8 = b'e';
    pub const BINGET: u8 = b'h';
    pub const LONG_BINGET: u8 = b'j';
    pub const LIST: u8 = b'l';
    pub const BINPUT: u8 = b'q';
    pub const LONG_BINPUT: u8 = b'r';
    pub const SETITEM: u8 = b's';
    pub const TUPLE: u8 = b't';
    pub const SETITEMS: u8 = b'u';
    pub const EMPTY_DICT: u8 = b'}';
    pub const PROTO: u8 = 0x80;
    pub const NEWOBJ: u8 = 0x81;
    pub const TUPLE1: u8 = 0x85;
    pub const TUPLE3: u8 = 0x87;
    pub const NEWTRUE: u8 = 0x88;
    pub const NEWFALSE: u8 = 0x89;
    pub const LONG1: u8 = 0x8a;
    pub const LONG4: u8 = 0x8b;
    pub const SHORT_BINUNICODE: u8 = 0x8c;
    pub const BINUNICODE8: u8 = 0x8d;
    pub const BINBYTES8: u8 = 0x8e;
    pub const EMPTY_SET: u8 = 0x8f;
    pub const ADDITEMS: u8 = 0x90;
    pub const FROZENSET: u8 = 0x91;
    pub const NEWOBJ_EX: u8 = 0x92;
    pub const STACK_GLOBAL: u8 = 0x93;
    pub const MEMOIZE: u8 = 0x94;
    pub const FRAME: u8 = 0x95;
    pub const BYTEARRAY8: u8 = 0x96;
}

/// A value, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id(u32);

/// A written value.
#[derive(Debug)]
pub enum Value {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// A whole number; [`Value::Big`] if it has more than 64 bits.
    Int(i64),
    /// A larger number.
    Big,
    /// A number with a fraction.
    Float(f64),
    /// A string: where its UTF-8 is.
    Text(u32, u32),
    /// Bytes.
    Bytes,
    /// A tuple.
    Tuple(Box<[Id]>),
    /// A list.
    List(Vec<Id>),
    /// A set. Its content is not used.
    Set,
    /// A dictionary, in the order in which it was filled.
    Dict(Vec<(Id, Id)>),
    /// A class or function: module and name.
    Global(Id, Id),
    /// What a call would have made.
    Object(Box<Object>),
    /// What lies outside of the pickle: storages of torch.
    Persistent(Id),
}

/// What a call would have made.
#[derive(Debug)]
pub struct Object {
    /// What would be called.
    pub callable: Id,
    /// With what: a tuple.
    pub arguments: Id,
    /// What would be handed to `__setstate__`, last.
    pub state: Option<Id>,
    /// What would be put into it by key.
    pub items: Vec<(Id, Id)>,
}

/// A pickle that has been read.
pub struct Pickle {
    bytes: Vec<u8>,
    values: Vec<Value>,
    root: Id,
    /// The [`Value::Persistent`] of it.
    pub persistent: Vec<Id>,
    /// How many bytes were read.
    pub length: usize,
}

impl Pickle {
    /// Reads a pickle that fills `bytes`.
    ///
    /// # Errors
    /// If Python could not load it, whatever its classes are. [`io::ErrorKind::FileTooLarge`] if it is beyond the limits.
    pub fn whole(bytes: Vec<u8>) -> Result<Self, Fault> {
        let length = bytes.len();
        let pickle = Self::first(bytes)?;
        if pickle.length != length {
            return Fault::wrong("is followed by something else");
        }
        Ok(pickle)
    }

    /// Reads the pickle that `bytes` begin with.
    ///
    /// # Errors
    /// As [`Pickle::whole`].
    pub fn first(bytes: Vec<u8>) -> Result<Self, Fault> {
        if bytes.len() as u64 > LIMIT {
            return Err(too_large("a pickle longer than any that is read"));
        }
        let mut machine = PickleMachine::new(&bytes);
        let root = machine.run()?;
        let PickleMachine { values, persistent, at: length, .. } = machine;
        Ok(Self { bytes, values, root, persistent, length })
    }

    /// All classes and functions that are named.
    pub fn globals(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().filter_map(|value| match value {
            Value::Global(module, name) => Some((self.text(*module)?, self.text(*name)?)),
            _ => None,
        })
    }

    /// What all calls would have made.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.values.iter().filter_map(|value| match value {
            Value::Object(object) => Some(&**object),
            _ => None,
        })
    }

    /// What the pickle stands for.
    #[must_use]
    pub fn root(&self) -> Id {
        self.root
    }

    /// The value of that number.
    #[must_use]
    pub fn value(&self, id: Id) -> &Value {
        &self.values[id.0 as usize]
    }

    /// A string.
    #[must_use]
    pub fn text(&self, id: Id) -> Option<&str> {
        match self.value(id) {
            Value::Text(start, end) => std::str::from_utf8(&self.bytes[*start as usize..*end as usize]).ok(),
            _ => None,
        }
    }

    /// A whole number.
    #[must_use]
    pub fn int(&self, id: Id) -> Option<i64> {
        match self.value(id) {
            Value::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// A number that counts something.
    #[must_use]
    pub fn count(&self, id: Id) -> Option<u64> {
        self.int(id).and_then(|number| u64::try_from(number).ok())
    }

    /// The members of a tuple.
    #[must_use]
    pub fn tuple(&self, id: Id) -> Option<&[Id]> {
        match self.value(id) {
            Value::Tuple(members) => Some(members),
            _ => None,
        }
    }

    /// The members of a list.
    #[must_use]
    pub fn list(&self, id: Id) -> Option<&[Id]> {
        match self.value(id) {
            Value::List(members) => Some(members),
            _ => None,
        }
    }

    /// What a dictionary has, or an object that is filled as one.
    #[must_use]
    pub fn items(&self, id: Id) -> Option<&[(Id, Id)]> {
        match self.value(id) {
            Value::Dict(items) => Some(items),
            Value::Object(object) => Some(&object.items),
            _ => None,
        }
    }

    /// What a dictionary has at a string.
    #[must_use]
    pub fn get(&self, id: Id, key: &str) -> Option<Id> {
        self.items(id)?.iter().rev().find(|(name, _)| self.text(*name) == Some(key)).map(|(_, value)| *value)
    }

    /// Module and name of a class or function.
    #[must_use]
    pub fn global(&self, id: Id) -> Option<(&str, &str)> {
        match self.value(id) {
            Value::Global(module, name) => Some((self.text(*module)?, self.text(*name)?)),
            _ => None,
        }
    }

    /// An object.
    #[must_use]
    pub fn object(&self, id: Id) -> Option<&Object> {
        match self.value(id) {
            Value::Object(object) => Some(object),
            _ => None,
        }
    }
}

struct PickleMachine<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the current frame ends.
    frame: Option<usize>,
    values: Vec<Value>,
    stack: Vec<Id>,
    /// How high the stack was when each mark was set.
    marks: Vec<usize>,
    memo: Vec<Option<Id>>,
    persistent: Vec<Id>,
    /// Numbers below 256, True, False and None are one value each.
    small: Vec<Id>,
    /// Memory of what the values own, in bytes.
    owned: usize,
}

const NO_VALUE: &str = "is a pickle that takes a value where there is none";
const OTHER_VALUE: &str = "is a pickle that takes another kind of value than there is";

impl<'a> PickleMachine<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            frame: None,
            // There are small numbers alone 256, and small pickles by the thousand.
            values: Vec::with_capacity(512),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            persistent: Vec::new(),
            small: Vec::with_capacity(259),
            owned: 0,
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each opcode")]
    fn run(&mut self) -> Result<Id, Fault> {
        for number in 0..256 {
            let id = self.make(Value::Int(number));
            self.small.push(id);
        }
        let none = self.make(Value::None);
        let truth = [self.make(Value::Bool(false)), self.make(Value::Bool(true))];
        loop {
            if self.frame == Some(self.at) {
                self.frame = None;
            }
            self.has_room(0)?;
            let opcode = self.take(1)?[0];
            match opcode {
                op::PROTO => {
                    let protocol = self.take(1)?[0];
                    if !(2..=5).contains(&protocol) {
                        return Fault::wrong(format!("is a pickle of protocol {protocol}"));
                    }
                }
                op::FRAME => {
                    let length = self.long(8)?;
                    let end = self.at.checked_add(length).filter(|&end| end <= self.bytes.len());
                    match (self.frame, end) {
                        (None, Some(_)) => self.frame = end,
                        (_, None) => return Fault::cut("ends within a frame of its pickle"),
                        _ => return Fault::wrong("is a pickle with a frame within a frame"),
                    }
                }
                op::STOP => {
                    if self.frame.is_some_and(|end| end != self.at) {
                        return Fault::wrong("is a pickle that ends within a frame");
                    }
                    let root = self.pop()?;
                    if !self.stack.is_empty() || !self.marks.is_empty() {
                        return Fault::wrong("is a pickle that leaves values behind");
                    }
                    return Ok(root);
                }
                op::MARK => self.marks.push(self.stack.len()),
                op::POP => {
                    if self.marks.last() == Some(&self.stack.len()) {
                        self.marks.pop();
                    } else {
                        self.pop()?;
                    }
                }
                op::POP_MARK => drop(self.pop_mark()?),
                op::DUP => {
                    let top = self.top()?;
                    self.stack.push(top);
                }
                op::NONE => self.stack.push(none),
                op::NEWTRUE => self.stack.push(truth[1]),
                op::NEWFALSE => self.stack.push(truth[0]),
                // Numbers
                op::BININT => {
                    let number = self.long(4)? as u32 as i32;
                    self.push(Value::Int(number.into()));
                }
                op::BININT1 => {
                    let number = self.take(1)?[0];
                    self.stack.push(self.small[usize::from(number)]);
                }
                op::BININT2 => {
                    let number = self.long(2)?;
                    self.push(Value::Int(number as i64));
                }
                op::LONG1 => {
                    let length = self.long(1)?;
                    self.integer(length)?;
                }
                op::LONG4 => {
                    let length = self.long(4)?;
                    self.integer(length)?;
                }
                op::BINFLOAT => {
                    let bytes = self.take(8)?;
                    let number = f64::from_be_bytes(bytes.try_into().unwrap_or_default());
                    self.push(Value::Float(number));
                }
                // Strings and bytes, by the width of their length
                op::SHORT_BINUNICODE => self.text(1)?,
                op::BINUNICODE => self.text(4)?,
                op::BINUNICODE8 => self.text(8)?,
                op::SHORT_BINBYTES | op::SHORT_BINSTRING => self.raw(1)?,
                op::BINBYTES | op::BINSTRING => self.raw(4)?,
                op::BINBYTES8 | op::BYTEARRAY8 => self.raw(8)?,
                // Tuples
                op::EMPTY_TUPLE => self.push(Value::Tuple(Box::default())),
                op::TUPLE1..=op::TUPLE3 => {
                    let members = self.pop_many(usize::from(opcode - op::TUPLE1 + 1))?;
                    self.push(Value::Tuple(members.into()));
                }
                op::TUPLE => {
                    let members = self.pop_mark()?;
                    self.push(Value::Tuple(members.into()));
                }
                // Lists
                op::EMPTY_LIST => self.push(Value::List(Vec::new())),
                op::LIST => {
                    let members = self.pop_mark()?;
                    self.push(Value::List(members));
                }
                op::APPEND => {
                    let member = self.pop()?;
                    self.append(vec![member])?;
                }
                op::APPENDS => {
                    let members = self.pop_mark()?;
                    self.append(members)?;
                }
                // Dictionaries
                op::EMPTY_DICT => self.push(Value::Dict(Vec::new())),
                op::DICT => {
                    let items = self.pop_mark()?;
                    self.push(Value::Dict(Vec::new()));
                    self.insert(&items)?;
                }
                op::SETITEM => {
                    let items = self.pop_many(2)?;
                    self.insert(&items)?;
                }
                op::SETITEMS => {
                    let items = self.pop_mark()?;
                    self.insert(&items)?;
                }
                // Sets
                op::EMPTY_SET => self.push(Value::Set),
                op::ADDITEMS => {
                    self.pop_mark()?;
                    let top = self.top()?;
                    if !matches!(self.values[top.0 as usize], Value::Set | Value::Object(_)) {
                        return Fault::wrong(OTHER_VALUE);
                    }
                }
                op::FROZENSET => {
                    self.pop_mark()?;
                    self.push(Value::Set);
                }
                // Classes and what they are called with
                op::GLOBAL => {
                    let module = self.line()?;
                    let name = self.line()?;
                    self.push(Value::Global(module, name));
                }
                op::STACK_GLOBAL => {
                    let names = self.pop_many(2)?;
                    if names.iter().any(|&name| !matches!(self.values[name.0 as usize], Value::Text(..))) {
                        return Fault::wrong(OTHER_VALUE);
                    }
                    self.push(Value::Global(names[0], names[1]));
                }
                op::REDUCE | op::NEWOBJ => {
                    let call = self.pop_many(2)?;
                    self.call(call[0], call[1])?;
                }
                op::NEWOBJ_EX => {
                    let call = self.pop_many(3)?;
                    self.call(call[0], call[1])?;
                }
                op::BUILD => {
                    let state = self.pop()?;
                    let top = self.top()?;
                    match &mut self.values[top.0 as usize] {
                        Value::Object(object) => object.state = Some(state),
                        _ => return Fault::wrong(OTHER_VALUE),
                    }
                }
                op::BINPERSID => {
                    let key = self.pop()?;
                    self.push(Value::Persistent(key));
                    self.persistent.push(self.top()?);
                }
                // The memo
                op::BINGET => {
                    let index = self.long(1)?;
                    self.recall(index)?;
                }
                op::LONG_BINGET => {
                    let index = self.long(4)?;
                    self.recall(index)?;
                }
                op::BINPUT => {
                    let index = self.long(1)?;
                    self.remember(index)?;
                }
                op::LONG_BINPUT => {
                    let index = self.long(4)?;
                    self.remember(index)?;
                }
                op::MEMOIZE => self.remember(self.memo.len())?,
                other => return Fault::wrong(format!("is a pickle with the opcode {other:#04x}")),
            }
        }
    }

    fn take(&mut self, count: usize) -> Result<&[u8], Fault> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let Some(end) = end else { return Fault::cut("ends within its pickle") };
        if self.frame.is_some_and(|frame| end > frame) {
            return Fault::wrong("is a pickle whose frames end within a value");
        }
        let start = std::mem::replace(&mut self.at, end);
        Ok(&self.bytes[start..end])
    }

    /// A length or an index of that many bytes.
    fn long(&mut self, width: usize) -> Result<usize, Fault> {
        let mut number = [0; 8];
        number[..width].copy_from_slice(self.take(width)?);
        usize::try_from(u64::from_le_bytes(number)).or_else(|_| Fault::wrong("is a pickle of impossible length"))
    }

    /// Whether that many more bytes may be allocated. Each opcode checks this, and little is allocated between two of
    /// them.
    fn has_room(&self, more: usize) -> Result<(), Fault> {
        let used = size_of_val(&*self.values)
            + self.owned
            + size_of_val(&*self.stack)
            + size_of_val(&*self.marks)
            + size_of_val(&*self.memo)
            + size_of_val(&*self.persistent);
        if used.saturating_add(more) > MEMORY {
            return Err(too_large("a pickle with more values than any that is read"));
        }
        Ok(())
    }

    fn make(&mut self, value: Value) -> Id {
        self.owned += match &value {
            Value::Tuple(members) if !members.is_empty() => PIECE + size_of_val(&**members),
            Value::List(members) if !members.is_empty() => PIECE + size_of_val(&**members),
            Value::Object(object) => PIECE + size_of_val(&**object),
            _ => 0,
        };
        self.values.push(value);
        Id((self.values.len() - 1) as u32)
    }

    fn push(&mut self, value: Value) {
        let id = self.make(value);
        self.stack.push(id);
    }

    fn top(&self) -> Result<Id, Fault> {
        match self.stack.last() {
            Some(&top) if self.marks.last() != Some(&self.stack.len()) => Ok(top),
            _ => Fault::wrong(NO_VALUE),
        }
    }

    fn pop(&mut self) -> Result<Id, Fault> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<Id>, Fault> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len().checked_sub(count).filter(|&at| at >= floor) {
            Some(at) => Ok(self.stack.split_off(at)),
            None => Fault::wrong(NO_VALUE),
        }
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>, Fault> {
        match self.marks.pop() {
            Some(mark) => Ok(self.stack.split_off(mark)),
            None => Fault::wrong("is a pickle that takes a mark where there is none"),
        }
    }

    fn integer(&mut self, length: usize) -> Result<(), Fault> {
        let bytes = self.take(length)?;
        let negative = bytes.last().is_some_and(|&byte| byte > 0x7f);
        let value = if bytes.len() > 8 {
            Value::Big
        } else {
            let mut number = [if negative { 0xff } else { 0 }; 8];
            number[..bytes.len()].copy_from_slice(bytes);
            Value::Int(i64::from_le_bytes(number))
        };
        self.push(value);
        Ok(())
    }

    fn span(&mut self, width: usize) -> Result<(u32, u32), Fault> {
        let length = self.long(width)?;
        let start = self.at;
        self.take(length)?;
        Ok((start as u32, self.at as u32))
    }

    fn text(&mut self, width: usize) -> Result<(), Fault> {
        let (start, end) = self.span(width)?;
        if !is_python_text(&self.bytes[start as usize..end as usize]) {
            return Fault::wrong("is a pickle with a string that is no text");
        }
        self.push(Value::Text(start, end));
        Ok(())
    }

    fn raw(&mut self, width: usize) -> Result<(), Fault> {
        self.span(width)?;
        self.push(Value::Bytes);
        Ok(())
    }

    fn line(&mut self) -> Result<Id, Fault> {
        let start = self.at;
        let Some(length) = self.bytes[start..].iter().position(|&byte| byte == b'\n') else {
            return Fault::cut("ends within its pickle");
        };
        self.take(length + 1)?;
        if std::str::from_utf8(&self.bytes[start..start + length]).is_err() {
            return Fault::wrong("is a pickle with a name that is no text");
        }
        Ok(self.make(Value::Text(start as u32, (start + length) as u32)))
    }

    fn append(&mut self, mut members: Vec<Id>) -> Result<(), Fault> {
        let top = self.top()?;
        match &mut self.values[top.0 as usize] {
            Value::List(list) => {
                self.owned += grown(list.len(), members.len(), size_of::<Id>());
                list.append(&mut members);
            }
            // What an object's own `append` does is not known.
            Value::Object(_) => {}
            _ => return Fault::wrong(OTHER_VALUE),
        }
        Ok(())
    }

    fn insert(&mut self, flat: &[Id]) -> Result<(), Fault> {
        let top = self.top()?;
        let pairs = flat.chunks_exact(2);
        if !pairs.remainder().is_empty() {
            return Fault::wrong("is a pickle with a key that has no value");
        }
        if pairs
            .clone()
            .any(|pair| matches!(self.values[pair[0].0 as usize], Value::List(_) | Value::Dict(_) | Value::Set))
        {
            return Fault::wrong("is a pickle with a key that can't be one");
        }
        let items = pairs.map(|pair| (pair[0], pair[1]));
        let place = match &mut self.values[top.0 as usize] {
            Value::Dict(dict) => dict,
            Value::Object(object) => &mut object.items,
            _ => return Fault::wrong(OTHER_VALUE),
        };
        self.owned += grown(place.len(), items.len(), size_of::<(Id, Id)>());
        place.extend(items);
        Ok(())
    }

    fn call(&mut self, callable: Id, arguments: Id) -> Result<(), Fault> {
        // A function may come out of a call (`functools.partial`, `getattr`); before torch 1.6 a module's class lay outside,
        // with its source.
        let callable_is =
            matches!(self.values[callable.0 as usize], Value::Global(..) | Value::Object(_) | Value::Persistent(_));
        if !callable_is || !matches!(self.values[arguments.0 as usize], Value::Tuple(_)) {
            return Fault::wrong(OTHER_VALUE);
        }
        self.push(Value::Object(Box::new(Object { callable, arguments, state: None, items: Vec::new() })));
        Ok(())
    }

    fn recall(&mut self, index: usize) -> Result<(), Fault> {
        match self.memo.get(index).copied().flatten() {
            Some(id) => self.stack.push(id),
            None => return Fault::wrong("is a pickle that recalls what it has not kept"),
        }
        Ok(())
    }

    fn remember(&mut self, index: usize) -> Result<(), Fault> {
        let top = self.top()?;
        // Writers count what they keep, from 0 or from 1.
        if index > self.memo.len() + self.values.len() {
            return Fault::wrong("is a pickle that keeps more than it has");
        }
        if index >= self.memo.len() {
            self.has_room((index + 1 - self.memo.len()) * size_of::<Option<Id>>())?;
            self.memo.resize(index + 1, None);
        }
        self.memo[index] = Some(top);
        Ok(())
    }
}

/// By how many bytes a vector grows that has some elements and is given more.
fn grown(has: usize, more: usize, size: usize) -> usize {
    // It grows by doubling, and begins with four.
    let first = if has == 0 && more > 0 { PIECE + 4 * size } else { 0 };
    first + 2 * more * size
}

/// A pickle of which nothing can be said.
pub fn too_large(what: &str) -> Fault {
    Fault::Io(io::Error::new(io::ErrorKind::FileTooLarge, what))
}

/// Python writes lone surrogates too (`surrogatepass`), which are no UTF-8.
fn is_python_text(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    loop {
        match std::str::from_utf8(rest) {
            Ok(_) => return true,
            Err(error) => {
                let after = &rest[error.valid_up_to()..];
                match after {
                    [0xed, 0xa0..=0xbf, 0x80..=0xbf, tail @ ..] => rest = tail,
                    _ => return false,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Pickle, Fault> {
        Pickle::whole(bytes.to_vec())
    }

    #[test]
    fn dictionary_of_all_basic_types_is_read() {
        // pickle.dumps({"n": 300, "big": -2, "f": 1.5, "t": (None, True, [1]), "s": "é"}, 4)
        let bytes = b"\x80\x04\x95\x3a\0\0\0\0\0\0\0}\x94(\x8c\x01n\x94M\x2c\x01\x8c\x03big\x94J\xfe\xff\xff\xff\x8c\x01f\x94G\x3f\xf8\
            \0\0\0\0\0\0\x8c\x01t\x94N\x88]\x94K\x01a\x87\x94\x8c\x01s\x94\x8c\x02\xc3\xa9\x94u.";
        let pickle = read(bytes).unwrap();
        let get = |key: &str| pickle.get(pickle.root(), key).unwrap();
        assert_eq!(pickle.int(get("n")), Some(300));
        assert_eq!(pickle.int(get("big")), Some(-2));
        assert!(matches!(pickle.value(get("f")), Value::Float(1.5)));
        assert_eq!(pickle.text(get("s")), Some("é"));
        let tuple = pickle.tuple(get("t")).unwrap();
        assert!(matches!(pickle.value(tuple[0]), Value::None));
        assert_eq!(pickle.list(tuple[2]).map(|list| pickle.int(list[0])), Some(Some(1)));
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_err(), "{length}");
        }
        assert!(matches!(read(&[&bytes[..], b"."].concat()), Err(Fault::Wrong(_))));
    }

    #[test]
    fn pickled_callables_are_never_called() {
        // os.system("false")
        let pickle = read(b"\x80\x02cos\nsystem\nX\x05\0\0\0false\x85R.").unwrap();
        let object = pickle.object(pickle.root()).unwrap();
        assert_eq!(pickle.global(object.callable), Some(("os", "system")));
    }

    #[test]
    fn persistent_id_may_stand_for_a_class() {
        // As torch wrote a whole module before 1.6: an object of the class at the persistent key 1.
        let pickle = read(b"\x80\x02K\x01Q)\x81}b.").unwrap();
        let object = pickle.object(pickle.root()).unwrap();
        assert!(matches!(pickle.value(object.callable), Value::Persistent(_)));
        assert!(read(b"\x80\x02K\x01)\x81}b.").is_err(), "a number is no class");
    }

    #[test]
    fn shared_values_stay_shared() {
        // A list that is in itself.
        let pickle = read(b"\x80\x02]q\0h\0a.").unwrap();
        assert_eq!(pickle.list(pickle.root()), Some(&[pickle.root()][..]));
        // Doubled a hundred times: [[x, x], [x, x]] and so on.
        let mut bytes = b"\x80\x02]\x94".to_vec();
        for _ in 0..100 {
            bytes.extend(b"2\x86\x94");
        }
        bytes.push(b'.');
        assert!(read(&bytes).unwrap().values.len() < 500);
    }

    /// What a machine has allocated when it gives up, or is done.
    fn allocated(bytes: &[u8]) -> (Result<Id, Fault>, usize) {
        let mut machine = PickleMachine::new(bytes);
        let result = machine.run();
        let memo = machine.memo.capacity() * size_of::<Option<Id>>();
        let stacks = machine.stack.capacity() * size_of::<Id>() + machine.marks.capacity() * size_of::<usize>();
        let of_each = |value: &Value| match value {
            Value::Tuple(members) => size_of_val(&**members),
            Value::List(members) => members.capacity() * size_of::<Id>(),
            Value::Dict(items) => items.capacity() * size_of::<(Id, Id)>(),
            Value::Object(object) => size_of::<Object>() + object.items.capacity() * size_of::<(Id, Id)>(),
            _ => 0,
        };
        let values = machine.values.capacity() * size_of::<Value>() + machine.values.iter().map(of_each).sum::<usize>();
        (result, memo + stacks + values)
    }

    #[test]
    fn huge_memo_index_does_not_allocate() {
        // A long string before it: the index is less than the length.
        let mut bytes = b"\x80\x02X\0\0\x10\0".to_vec();
        bytes.resize(bytes.len() + (1 << 20), b'x');
        bytes.extend(b"r\0\0\x0f\0.");
        let (result, allocated) = allocated(&bytes);
        assert!(matches!(result, Err(Fault::Wrong(why)) if why.contains("keeps more")), "{allocated}");
        assert!(allocated < 1 << 16, "{allocated} bytes");
    }

    #[test]
    fn memory_is_bounded_for_any_repeated_opcode() {
        let count = 8 << 20;
        let long = |prefix: &[u8], repeated: &[u8]| [b"\x80\x02", prefix, &repeated.repeat(count)].concat();
        for (name, bytes) in [
            ("values", long(b"", b"]")),
            ("objects", long(b"cm\nc\nq\0", b"h\0)R")),
            ("full lists", long(b"", b"]Na")),
            ("full dicts", long(b"", b"}K\x01Ns")),
            ("one list", long(b"]", &b"Na".repeat(4))),
            ("one dict", long(b"}", &b"K\x01Ns".repeat(2))),
            ("tuples", long(b"", b"N\x85")),
            ("memo", long(b"N", &b"\x94".repeat(2))),
            ("stack", long(b"N", &b"2".repeat(4))),
            ("marks", long(b"", &b"(".repeat(2))),
        ] {
            let (result, allocated) = allocated(&bytes);
            assert!(matches!(&result, Err(fault) if fault.is_too_large()), "{name}: {result:?}");
            // A vector that has just doubled is half empty.
            assert!(allocated <= 2 * MEMORY, "{name}: {allocated} bytes");
        }
    }

    #[test]
    fn pickles_rejected_by_python_are_rejected() {
        let refused: [&[u8]; 14] = [
            b"",
            b".",
            b"\x80\x02.",
            b"\x80\x09N.",
            b"\x80\x02h\0.",
            b"\x80\x02]}s.",
            b"\x80\x02}]Ns.",
            b"\x80\x02}(Nu.",
            b"\x80\x02NNR.",
            b"\x80\x02K\x01K\x02.",
            b"\x80\x02(N.",
            b"\x80\x02X\xff\xff\xff\xff.",
            b"\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xff.",
            b"\x80\x02Nr\xff\xff\xff\xff.",
        ];
        for bytes in refused {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
        assert!(read(b"\x80\x04\x95\x02\0\0\0\0\0\0\0N.").is_ok());
        assert!(read(b"\x80\x04\x95\x03\0\0\0\0\0\0\0N.").is_err());
        assert!(read(b"\x80\x04\x95\x01\0\0\0\0\0\0\0K\x01.").is_err());
    }

    #[test]
    fn pickle_reader_survives_arbitrary_bytes() {
        // Numbers that are the same each time.
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let opcodes = b"}]()NK.KMh\x94q2t\x85ue01aRb\x81\x93\x8c\x95";
        for _ in 0..20_000 {
            let mut bytes = b"\x80\x04".to_vec();
            bytes.extend((0..40).map(|_| match next() {
                byte @ 0..=39 => byte,
                byte => opcodes[usize::from(byte) % opcodes.len()],
            }));
            drop(read(&bytes));
        }
    }
}
