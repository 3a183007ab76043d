"""The R packages that people expect to find, from Debian: each is loaded and used inside the usual filter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll import Sandbox
from tests.kernels.r_presence import needs_r

pytestmark = [needs_r, pytest.mark.any_user]

_LIBRARIES = (Path("/usr/lib/R/site-library"), Path("/usr/local/lib/R/site-library"))

# By package: a line that uses it, and what it gives.
PACKAGES = {
    "jsonlite": ("as.character(jsonlite::toJSON(list(a = 1:2)))", '[1] "{\\"a\\":[1,2]}"'),
    "base64enc": ("base64enc::base64encode(charToRaw('abc'))", '[1] "YWJj"'),
    "ggplot2": ("class(ggplot2::ggplot(mtcars))[2]", '[1] "ggplot"'),
    "tibble": ("nrow(tibble::tibble(a = 1:3))", "[1] 3"),
    "tidyverse": (
        "suppressPackageStartupMessages(library(tidyverse)); mtcars |> filter(cyl == 4) |> summarise(n = n()) |> pull(n)",
        "[1] 11",
    ),
    "dplyr": ("dplyr::n_distinct(c(1, 1, 2))", "[1] 2"),
    "tidyr": ("nrow(tidyr::pivot_longer(data.frame(a = 1, b = 2), c(a, b)))", "[1] 2"),
    "readr": ("sum(readr::read_csv(I('a\\n1\\n2'), show_col_types = FALSE)$a)", "[1] 3"),
    "purrr": ("purrr::map_dbl(1:2, sqrt)[1]", "[1] 1"),
    "stringr": ("stringr::str_to_upper('straße')", '[1] "STRASSE"'),
    "lubridate": (
        "as.character(lubridate::ymd('2024-02-28') + lubridate::days(2))",
        '[1] "2024-03-01"',
    ),
    "data.table": ("data.table::data.table(a = 1:4)[a > 2, sum(a)]", "[1] 7"),
    "readxl": ("ncol(readxl::read_excel(readxl::readxl_example('datasets.xlsx')))", "[1] 5"),
    "haven": (
        "haven::write_dta(data.frame(a = 1), '/tmp/a.dta'); as.numeric(haven::read_dta('/tmp/a.dta')$a)",
        "[1] 1",
    ),
    "httr2": ("httr2::request('http://a.b/')$url", '[1] "http://a.b/"'),
    "DBI": ("DBI::SQL('x')", "<SQL> x"),
    "RSQLite": (
        "c <- DBI::dbConnect(RSQLite::SQLite(), ':memory:'); DBI::dbGetQuery(c, 'select 1 + 1 as n')$n",
        "[1] 2",
    ),
    "rmarkdown": (
        "grepl('^markdown', rmarkdown::md_document()$pandoc$to)",
        "[1] TRUE",
    ),
    "knitr": ("knitr::knit(text = '`r 1 + 1`', quiet = TRUE)", '[1] "2"'),
    "devtools": ("is.function(devtools::load_all)", "[1] TRUE"),
    "glmnet": (
        "x <- matrix(rnorm(200), 50); length(glmnet::glmnet(x, x[, 1])$lambda) > 1",
        "[1] TRUE",
    ),
    "randomForest": ("randomForest::randomForest(Species ~ ., iris, ntree = 5)$ntree", "[1] 5"),
    "htmlwidgets": ("is.function(htmlwidgets::saveWidget)", "[1] TRUE"),
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(template="r") as sandbox:
        yield sandbox


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_of_debians_works(sandbox: Sandbox, name: str) -> None:
    if not any((library / name).is_dir() for library in _LIBRARIES):
        pytest.skip(f"{name} is not installed; the Debian package is r-cran-{name.lower()}")
    code, text = PACKAGES[name]
    cell = sandbox.run_code(code, timeout=120).check()
    assert cell.text == text
    sandbox.kernels.restart(sandbox.kernels.list()[0].id)
