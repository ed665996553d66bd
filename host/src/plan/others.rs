//! Plans appends, merges and sums. Dtypes alone select their kernels.
use super::sealed::{Kernels, Request, Subject};
use crate::lower::{self, Merged, Refusal};
use crate::place::Place;
use crate::request::{Append, Merge, PARTS, Parts, Places, Sum};
#[cfg(feature = "cudarc")]
use crate::request::{KvPages, KvScale};
use crate::select::{self, Choice};
use crate::{Capabilities, Error, Launch, Tuning, validate};

impl Kernels for Place {
    fn places(&self) -> impl Iterator<Item = Place> {
        std::iter::once(*self)
    }
}

impl Request for Append {
    type Subject = Append;

    fn is(&self, subject: &Append) -> bool {
        self == subject
    }

    fn valid(&self, _: Option<&Append>) -> Result<Append, Error> {
        validate::append(self).map(|_| *self)
    }

    fn is_moved(&self, subject: &Append, place: impl FnOnce(Places<'_>)) -> bool {
        let mut moved = *self;
        place(moved.places());
        moved == *subject
    }

    #[cfg(feature = "cudarc")]
    fn written(&self) -> Vec<u64> {
        let KvPages { keys, values, scales } = self.pages;
        let mut written = vec![keys.address, values.address];
        written.extend(scales.iter().filter_map(|scale| match scale {
            KvScale::Tokens(scales) => Some(scales.address),
            _ => None,
        }));
        let queries = self.rotary.and_then(|rotary| rotary.queries);
        written.extend(queries.map(|queries| queries.rotated.address));
        written
    }
}

impl Subject for Append {
    type Kernel = Place;

    fn select(&self, _: Option<&str>, on: &Capabilities, _: &Tuning) -> Result<Choice<Place>, Error> {
        select::append(self, on)
    }

    fn is_as_planned(&self, planned: &Self, _: &Place) -> Result<(), Error> {
        let types = |append: &Append| [append.k.dtype, append.pages.keys.dtype].map(|dtype| dtype.name());
        let turned = |append: &Append| if append.rotary.is_some() { "with" } else { "without" };
        if types(self) == types(planned) && turned(self) == turned(planned) {
            return Ok(());
        }
        let say = |append: &Append| {
            let [tokens, cache] = types(append);
            format!("{tokens} tokens and an {cache} cache, {} rotary embedding", turned(append))
        };
        let expected = format_args!("the plan is for {}; make another plan", say(planned));
        Err(Error::invalid("append", say(self), expected))
    }

    fn lower(&self, kernel: &Place, launch: &mut Launch) -> Result<(), Refusal> {
        Ok(lower::append(self, *kernel, launch)?)
    }

    fn parts(&self) -> Option<Parts> {
        validate::append(self).ok()
    }

    fn places(&mut self) -> Places<'_> {
        self.places()
    }
}

impl Request for Merge<'_> {
    type Subject = Merged;

    fn is(&self, subject: &Merged) -> bool {
        Merged::new(self).is_ok_and(|own| own == *subject)
    }

    fn valid(&self, _: Option<&Merged>) -> Result<Merged, Error> {
        validate::merge(self)?;
        Merged::new(self)
    }

    fn is_moved(&self, subject: &Merged, place: impl FnOnce(Places<'_>)) -> bool {
        Merged::new(self).is_ok_and(|mut moved| {
            place(moved.places());
            moved == *subject
        })
    }

    #[cfg(feature = "cudarc")]
    fn written(&self) -> Vec<u64> {
        [Some(self.o.address), self.lse.map(|lse| lse.address)].into_iter().flatten().collect()
    }
}

impl Subject for Merged {
    type Kernel = Place;

    fn select(&self, _: Option<&str>, on: &Capabilities, _: &Tuning) -> Result<Choice<Place>, Error> {
        select::merge(self.types(), on)
    }

    fn is_as_planned(&self, planned: &Self, _: &Place) -> Result<(), Error> {
        let ([states, output], own) = (self.types(), planned.types());
        if [states, output] == own {
            return Ok(());
        }
        let [from, to] = own.map(|dtype| dtype.name());
        let expected = format_args!("the plan merges {from} to {to}; make another plan");
        let value = format_args!("{} of {}", output.name(), states.name());
        Err(Error::invalid("merge", value, expected))
    }

    fn lower(&self, kernel: &Place, launch: &mut Launch) -> Result<(), Refusal> {
        Ok(lower::merge(self, *kernel, launch)?)
    }

    fn parts(&self) -> Option<Parts> {
        self.parts()
    }

    fn places(&mut self) -> Places<'_> {
        self.places()
    }
}

impl Request for Sum {
    type Subject = Sum;

    fn is(&self, subject: &Sum) -> bool {
        self == subject
    }

    fn valid(&self, _: Option<&Sum>) -> Result<Sum, Error> {
        validate::sum(self).map(|_| *self)
    }

    fn is_moved(&self, subject: &Sum, place: impl FnOnce(Places<'_>)) -> bool {
        let mut moved = *self;
        place(moved.places());
        moved == *subject
    }

    #[cfg(feature = "cudarc")]
    fn written(&self) -> Vec<u64> {
        vec![self.sum.address]
    }
}

impl Subject for Sum {
    type Kernel = Place;

    fn select(&self, _: Option<&str>, on: &Capabilities, _: &Tuning) -> Result<Choice<Place>, Error> {
        select::sum(self.sum.dtype, on)
    }

    fn is_as_planned(&self, planned: &Self, _: &Place) -> Result<(), Error> {
        let [own, theirs] = [self, planned].map(|sum| sum.sum.dtype);
        if own == theirs {
            return Ok(());
        }
        let expected = format_args!("the plan adds {}; make another plan", theirs.name());
        Err(Error::invalid("sum.dtype", own.name(), expected))
    }

    fn lower(&self, kernel: &Place, launch: &mut Launch) -> Result<(), Refusal> {
        Ok(lower::sum(self, *kernel, launch)?)
    }

    fn parts(&self) -> Option<Parts> {
        validate::sum(self).ok()
    }

    fn places(&mut self) -> Places<'_> {
        let mut all = [const { None }; PARTS];
        (all[0], all[1]) = (Some(&mut self.first.address), Some(&mut self.sum.address));
        all
    }
}
