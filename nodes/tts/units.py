"""Words for currencies, percentages and units, both languages, with Spanish genders."""

from __future__ import annotations

from dataclasses import dataclass

from .languages import Locale


@dataclass(frozen=True)
class Noun:
    """A unit in both languages, singular and plural. spaced: only after a space ("5 s", not "the 80s")."""

    en: tuple[str, str]
    es: tuple[str, str]
    gender: str = "m"
    spaced: bool = False
    american: tuple[str, str] | None = None

    def one(self, locale: Locale) -> str:
        return self._forms(locale)[0]

    def many(self, locale: Locale) -> str:
        return self._forms(locale)[1]

    def _forms(self, locale: Locale) -> tuple[str, str]:
        if locale.is_es:
            return self.american if self.american and locale.american else self.es
        if locale.british:
            return tuple(w.replace("meter", "metre").replace("liter", "litre") for w in self.en)  # type: ignore[return-value]
        return self.en


@dataclass(frozen=True)
class Currency:
    unit: Noun
    minor: Noun | None = None


def _noun(en: str, es: str, gender: str = "m", spaced: bool = False) -> Noun:
    """Make a Noun from "singular plural" with underscores for spaces inside."""

    def pair(text: str) -> tuple[str, str]:
        words = [w.replace("_", " ") for w in text.split()]
        return words[0], words[-1]

    return Noun(pair(en), pair(es), gender, spaced)


_CENT = Noun(("cent", "cents"), ("céntimo", "céntimos"), american=("centavo", "centavos"))
_CENTAVO = _noun("cent cents", "centavo centavos")
_DOLLAR = Currency(_noun("dollar dollars", "dólar dólares"), _CENTAVO)
_EURO = Currency(_noun("euro euros", "euro euros"), _CENT)
_POUND = Currency(_noun("pound pounds", "libra libras", "f"), _noun("penny pence", "penique peniques"))
_YEN = Currency(_noun("yen", "yen yenes"))


def _dollar(en: str, es: str) -> Currency:
    return Currency(_noun(f"{en}_dollar {en}_dollars", f"dólar_{es} dólares_{es}s"), _CENTAVO)


_REAL = Currency(_noun("real reais", "real reales"), _CENTAVO)
_RUPEE = Currency(_noun("rupee rupees", "rupia rupias", "f"))
_WON = Currency(_noun("won", "won wones"))
_RUBLE = Currency(_noun("ruble rubles", "rublo rublos"))
_LIRA = Currency(_noun("Turkish_lira Turkish_lira", "lira_turca liras_turcas", "f"))
_SHEKEL = Currency(_noun("shekel shekels", "séquel séqueles"))
_ZLOTY = Currency(_noun("zloty zlotys", "zloty zlotys"))
_HRYVNIA = Currency(_noun("hryvnia hryvnias", "grivna grivnas", "f"))
_NAIRA = Currency(_noun("naira", "naira nairas", "f"))
_SOL = Currency(_noun("sol soles", "sol soles"), _CENT)
_SINGAPORE = _dollar("Singapore", "singapurense")
_HONG_KONG = Currency(_noun("Hong_Kong_dollar Hong_Kong_dollars", "dólar_de_Hong_Kong dólares_de_Hong_Kong"))
_MEXICAN = Currency(_noun("Mexican_peso Mexican_pesos", "peso_mexicano pesos_mexicanos"), _CENTAVO)
_US = Currency(_noun("U-S_dollar U-S_dollars", "dólar_estadounidense dólares_estadounidenses"), _CENTAVO)
PESO = Currency(_noun("peso pesos", "peso pesos"), _CENTAVO)
"""The $ of the countries whose money is a peso."""
CURRENCIES: dict[str, Currency] = {
    **{"$": _DOLLAR, "€": _EURO, "£": _POUND, "¥": _YEN},
    **{"US$": _US, "USD": _US, "EUR": _EURO, "GBP": _POUND, "JPY": _YEN},
    "C$": _dollar("Canadian", "canadiense"),
    "CAD": _dollar("Canadian", "canadiense"),
    "A$": _dollar("Australian", "australiano"),
    "AUD": _dollar("Australian", "australiano"),
    "HK$": _HONG_KONG,
    "MXN": _MEXICAN,
    "ARS": Currency(_noun("Argentine_peso Argentine_pesos", "peso_argentino pesos_argentinos"), _CENTAVO),
    "COP": Currency(_noun("Colombian_peso Colombian_pesos", "peso_colombiano pesos_colombianos"), _CENTAVO),
    "CLP": Currency(_noun("Chilean_peso Chilean_pesos", "peso_chileno pesos_chilenos")),
    "R$": _REAL,
    "CHF": Currency(_noun("Swiss_franc Swiss_francs", "franco_suizo francos_suizos"), _CENT),
    "CNY": Currency(_noun("yuan", "yuan yuanes")),
    **{"₹": _RUPEE, "INR": _RUPEE, "₩": _WON, "₽": _RUBLE},
    **{
        "₺": _LIRA,
        "TRY": _LIRA,
        "₪": _SHEKEL,
        "ILS": _SHEKEL,
        "zł": _ZLOTY,
        "PLN": _ZLOTY,
        "₴": _HRYVNIA,
        "₦": _NAIRA,
    },
    **{
        "Rs.": _RUPEE,
        "Rs": _RUPEE,
        "BRL": _REAL,
        "KRW": _WON,
        "RUB": _RUBLE,
        "ZAR": Currency(_noun("rand", "rand rands")),
    },
    **{"NZ$": _dollar("New_Zealand", "neozelandés"), "NZD": _dollar("New_Zealand", "neozelandés")},
    **{"S$": _SINGAPORE, "SGD": _SINGAPORE, "CA$": _dollar("Canadian", "canadiense"), "HKD": _HONG_KONG},
    **{
        "AU$": _dollar("Australian", "australiano"),
        "MX$": _MEXICAN,
        "Mex$": _MEXICAN,
        "PEN": _SOL,
        "S/": _SOL,
    },
    "SEK": Currency(_noun("Swedish_krona Swedish_kronor", "corona_sueca coronas_suecas", "f")),
    "NOK": Currency(_noun("Norwegian_krone Norwegian_kroner", "corona_noruega coronas_noruegas", "f")),
    "DKK": Currency(_noun("Danish_krone Danish_kroner", "corona_danesa coronas_danesas", "f")),
    "₿": Currency(_noun("bitcoin bitcoins", "bitcóin bitcoines")),
    "BTC": Currency(_noun("bitcoin bitcoins", "bitcóin bitcoines")),
}

_POINT = _noun("percentage_point percentage_points", "punto_porcentual puntos_porcentuales")
_BASIS = _noun("basis_point basis_points", "punto_básico puntos_básicos")
PERCENTS: dict[str, Noun] = {
    "%": _noun("percent", "por_ciento", "n"),
    "‰": _noun("per_mille", "por_mil", "n"),
    **{mark: _POINT for mark in ("pp", "p.p.", "p. p.", "pps")},
    **{mark: _BASIS for mark in ("bps", "bp", "b.p.", "pb", "p.b.", "p. b.")},
}

_CELSIUS = _noun("degree_Celsius degrees_Celsius", "grado_Celsius grados_Celsius")
_FAHRENHEIT = _noun("degree_Fahrenheit degrees_Fahrenheit", "grado_Fahrenheit grados_Fahrenheit")
_SECOND = _noun("second seconds", "segundo segundos", spaced=True)
_MINUTE = _noun("minute minutes", "minuto minutos")
_HOUR = _noun("hour hours", "hora horas", "f")
_FOOT, _INCH = _noun("foot feet", "pie pies"), _noun("inch inches", "pulgada pulgadas", "f")
_YARD, _MILE = _noun("yard yards", "yarda yardas", "f"), _noun("mile miles", "milla millas", "f")
_POUND_MASS, _OUNCE = _noun("pound pounds", "libra libras", "f"), _noun("ounce ounces", "onza onzas", "f")
_SQUARE_FOOT = _noun("square_foot square_feet", "pie_cuadrado pies_cuadrados")
_SQUARE_MILE = _noun("square_mile square_miles", "milla_cuadrada millas_cuadradas", "f")
_SQUARE_METER = _noun("square_meter square_meters", "metro_cuadrado metros_cuadrados")
_SQUARE_KM = _noun("square_kilometer square_kilometers", "kilómetro_cuadrado kilómetros_cuadrados")
_MICROGRAM = _noun("microgram micrograms", "microgramo microgramos")
_YEAR, _WEEK = _noun("year years", "año años"), _noun("week weeks", "semana semanas", "f")
_MILLIMOLE = _noun("millimole_per_liter millimoles_per_liter", "milimol_por_litro milimoles_por_litro")
_FLOW = _noun(
    "cubic_meter_per_second cubic_meters_per_second", "metro_cúbico_por_segundo metros_cúbicos_por_segundo"
)
_RAIN = _noun(
    "liter_per_square_meter liters_per_square_meter", "litro_por_metro_cuadrado litros_por_metro_cuadrado"
)
_BARREL = _noun("barrel_per_day barrels_per_day", "barril_por_día barriles_por_día")
UNITS: dict[str, Noun] = {
    **{"°C": _CELSIUS, "ºC": _CELSIUS, "° C": _CELSIUS, "℃": _CELSIUS},
    **{"°F": _FAHRENHEIT, "ºF": _FAHRENHEIT, "° F": _FAHRENHEIT, "℉": _FAHRENHEIT},
    "°": _noun("degree degrees", "grado grados"),
    "km/h": _noun("kilometer_per_hour kilometers_per_hour", "kilómetro_por_hora kilómetros_por_hora"),
    "kph": _noun("kilometer_per_hour kilometers_per_hour", "kilómetro_por_hora kilómetros_por_hora"),
    "mph": _noun("mile_per_hour miles_per_hour", "milla_por_hora millas_por_hora", "f"),
    "m/s": _noun("meter_per_second meters_per_second", "metro_por_segundo metros_por_segundo"),
    "km": _noun("kilometer kilometers", "kilómetro kilómetros"),
    "cm": _noun("centimeter centimeters", "centímetro centímetros"),
    "mm": _noun("millimeter millimeters", "milímetro milímetros"),
    "m": _noun("meter meters", "metro metros"),
    "km²": _SQUARE_KM,
    "km2": _SQUARE_KM,
    "m²": _SQUARE_METER,
    "m2": _SQUARE_METER,
    "m³": _noun("cubic_meter cubic_meters", "metro_cúbico metros_cúbicos"),
    "m3": _noun("cubic_meter cubic_meters", "metro_cúbico metros_cúbicos"),
    "mi": _MILE,
    "ft": _FOOT,
    "yd": _YARD,
    "sq ft": _SQUARE_FOOT,
    "ha": _noun("hectare hectares", "hectárea hectáreas", "f"),
    "kg": _noun("kilogram kilograms", "kilo kilos"),
    "mg": _noun("milligram milligrams", "miligramo miligramos"),
    "g": _noun("gram grams", "gramo gramos", spaced=True),
    "t": _noun("tonne tonnes", "tonelada toneladas", "f", spaced=True),
    "lb": _POUND_MASS,
    "lbs": _POUND_MASS,
    "oz": _OUNCE,
    "tbsp": _noun("tablespoon tablespoons", "cucharada cucharadas", "f"),
    "tsp": _noun("teaspoon teaspoons", "cucharadita cucharaditas", "f"),
    "tbsp.": _noun("tablespoon tablespoons", "cucharada cucharadas", "f"),
    "tsp.": _noun("teaspoon teaspoons", "cucharadita cucharaditas", "f"),
    "ml": _noun("milliliter milliliters", "mililitro mililitros"),
    "mL": _noun("milliliter milliliters", "mililitro mililitros"),
    "l": _noun("liter liters", "litro litros", spaced=True),
    "L": _noun("liter liters", "litro litros"),
    **{mark: _RAIN for mark in ("l/m2", "l/m²", "L/m2", "L/m²")},
    "kWh": _noun("kilowatt_hour kilowatt_hours", "kilovatio_hora kilovatios_hora"),
    "MWh": _noun("megawatt_hour megawatt_hours", "megavatio_hora megavatios_hora"),
    "GWh": _noun("gigawatt_hour gigawatt_hours", "gigavatio_hora gigavatios_hora"),
    "TWh": _noun("terawatt_hour terawatt_hours", "teravatio_hora teravatios_hora"),
    "kW": _noun("kilowatt kilowatts", "kilovatio kilovatios"),
    "MW": _noun("megawatt megawatts", "megavatio megavatios"),
    "GW": _noun("gigawatt gigawatts", "gigavatio gigavatios"),
    "W": _noun("watt watts", "vatio vatios"),
    "V": _noun("volt volts", "voltio voltios"),
    "Hz": _noun("hertz", "hercio hercios"),
    "kHz": _noun("kilohertz", "kilohercio kilohercios"),
    "MHz": _noun("megahertz", "megahercio megahercios"),
    "GHz": _noun("gigahertz", "gigahercio gigahercios"),
    "KB": _noun("kilobyte kilobytes", "kilobyte kilobytes"),
    "MB": _noun("megabyte megabytes", "megabyte megabytes"),
    "GB": _noun("gigabyte gigabytes", "gigabyte gigabytes"),
    "TB": _noun("terabyte terabytes", "terabyte terabytes"),
    "Mbps": _noun("megabit_per_second megabits_per_second", "megabit_por_segundo megabits_por_segundo"),
    "Gbps": _noun("gigabit_per_second gigabits_per_second", "gigabit_por_segundo gigabits_por_segundo"),
    "dB": _noun("decibel decibels", "decibelio decibelios"),
    "hPa": _noun("hectopascal hectopascals", "hectopascal hectopascales"),
    "ppm": _noun("part_per_million parts_per_million", "parte_por_millón partes_por_millón", "f"),
    "rpm": _noun(
        "revolution_per_minute revolutions_per_minute", "revolución_por_minuto revoluciones_por_minuto", "f"
    ),
    "bpm": _noun("beat_per_minute beats_per_minute", "latido_por_minuto latidos_por_minuto"),
    "fps": _noun("frame_per_second frames_per_second", "fotograma_por_segundo fotogramas_por_segundo"),
    "kcal": _noun("kilocalorie kilocalories", "kilocaloría kilocalorías", "f"),
    "h": _HOUR,
    "hrs": _HOUR,
    "min": _MINUTE,
    "ms": _noun("millisecond milliseconds", "milisegundo milisegundos"),
    "s": _SECOND,
    **{"sec": _SECOND, "sec.": _SECOND, "secs": _SECOND, "seg": _SECOND, "seg.": _SECOND},
    **{
        "ft.": _FOOT,
        "in.": _INCH,
        "lb.": _POUND_MASS,
        "lbs.": _POUND_MASS,
        "oz.": _OUNCE,
        "yd.": _YARD,
        "yds.": _YARD,
    },
    **{"yds": _YARD, "mi.": _MILE, "hr": _HOUR, "hr.": _HOUR, "hrs.": _HOUR, "h.": _HOUR, "min.": _MINUTE},
    **{
        "mins": _MINUTE,
        "mins.": _MINUTE,
        "sq. ft.": _SQUARE_FOOT,
        "sq ft.": _SQUARE_FOOT,
        "sq mi": _SQUARE_MILE,
    },
    **{
        "sq. mi.": _SQUARE_MILE,
        "ft²": _SQUARE_FOOT,
        "mi²": _SQUARE_MILE,
        "sq m": _SQUARE_METER,
        "sq km": _SQUARE_KM,
    },
    "gal": _noun("gallon gallons", "galón galones"),
    "gal.": _noun("gallon gallons", "galón galones"),
    "nm": _noun("nanometer nanometers", "nanómetro nanómetros"),
    "μm": _noun("micrometer micrometers", "micrómetro micrómetros"),
    "µm": _noun("micrometer micrometers", "micrómetro micrómetros"),
    **{"mcg": _MICROGRAM, "µg": _MICROGRAM, "μg": _MICROGRAM},
    "cm³": _noun("cubic_centimeter cubic_centimeters", "centímetro_cúbico centímetros_cúbicos"),
    "cm²": _noun("square_centimeter square_centimeters", "centímetro_cuadrado centímetros_cuadrados"),
    "km³": _noun("cubic_kilometer cubic_kilometers", "kilómetro_cúbico kilómetros_cúbicos"),
    "cl": _noun("centiliter centiliters", "centilitro centilitros"),
    "mA": _noun("milliamp milliamps", "miliamperio miliamperios"),
    "mAh": _noun("milliamp_hour milliamp_hours", "miliamperio_hora miliamperios_hora"),
    "kV": _noun("kilovolt kilovolts", "kilovoltio kilovoltios"),
    "kJ": _noun("kilojoule kilojoules", "kilojulio kilojulios"),
    "mbar": _noun("millibar millibars", "milibar milibares"),
    "kt": _noun("knot knots", "nudo nudos"),
    "Nm": _noun("newton_meter newton_meters", "newton_metro newtons_metro"),
    "hp": _noun("horsepower", "caballo caballos"),
    "CV": _noun("horsepower", "caballo caballos"),
    "cc": _noun("cc", "centímetro_cúbico centímetros_cúbicos"),
    "PB": _noun("petabyte petabytes", "petabyte petabytes"),
    "kB": _noun("kilobyte kilobytes", "kilobyte kilobytes"),
    "MP": _noun("megapixel megapixels", "megapíxel megapíxeles"),
    "mSv": _noun("millisievert millisieverts", "milisievert milisieverts"),
    "mmHg": _noun(
        "millimeter_of_mercury millimeters_of_mercury", "milímetro_de_mercurio milímetros_de_mercurio"
    ),
    "mg/dL": _noun(
        "milligram_per_deciliter milligrams_per_deciliter", "miligramo_por_decilitro miligramos_por_decilitro"
    ),
    "µg/m³": _noun(
        "microgram_per_cubic_meter micrograms_per_cubic_meter",
        "microgramo_por_metro_cúbico microgramos_por_metro_cúbico",
    ),
    "km/s": _noun(
        "kilometer_per_second kilometers_per_second", "kilómetro_por_segundo kilómetros_por_segundo"
    ),
    **{"yr": _YEAR, "yrs": _YEAR, "yr.": _YEAR, "yrs.": _YEAR, "wk": _WEEK, "wks": _WEEK, "wks.": _WEEK},
    **{"pts": _noun("point points", "punto puntos"), "pts.": _noun("point points", "punto puntos")},
    "mb": _noun("millibar millibars", "milibar milibares", spaced=True),
    "lpm": _noun("beat_per_minute beats_per_minute", "latido_por_minuto latidos_por_minuto"),
    **{"mmol/L": _MILLIMOLE, "mmol/l": _MILLIMOLE},
    **{"m³/s": _FLOW, "m3/s": _FLOW},
    "g/km": _noun("gram_per_kilometer grams_per_kilometer", "gramo_por_kilómetro gramos_por_kilómetro"),
    **{"bpd": _BARREL, "b/d": _BARREL},
}

PER: dict[str, tuple[str, str]] = {
    "hour": ("per hour", "por hora"),
    "h": ("per hour", "por hora"),
    "day": ("per day", "por día"),
    "week": ("per week", "por semana"),
    "month": ("per month", "por mes"),
    "year": ("per year", "por año"),
    "yr": ("per year", "por año"),
    "hr": ("per hour", "por hora"),
    "wk": ("per week", "por semana"),
    "mo": ("per month", "por mes"),
    "lb": ("per pound", "por libra"),
    "km": ("per kilometer", "por kilómetro"),
    "night": ("per night", "por noche"),
    "person": ("per person", "por persona"),
    "barrel": ("per barrel", "por barril"),
    "gallon": ("per gallon", "por galón"),
    "share": ("per share", "por acción"),
    "kg": ("per kilogram", "por kilo"),
    "kWh": ("per kilowatt hour", "por kilovatio hora"),
    "MWh": ("per megawatt hour", "por megavatio hora"),
    "m²": ("per square meter", "por metro cuadrado"),
    "m2": ("per square meter", "por metro cuadrado"),
    "bbl": ("per barrel", "por barril"),
    "oz": ("per ounce", "por onza"),
    "gal": ("per gallon", "por galón"),
    "MMBtu": ("per million B-T-U", "por millón de B-T-U"),
    "mmBtu": ("per million B-T-U", "por millón de B-T-U"),
    "therm": ("per therm", "por termia"),
    "tonne": ("per tonne", "por tonelada"),
    "ton": ("per ton", "por tonelada"),
    "t": ("per tonne", "por tonelada"),
    "bushel": ("per bushel", "por fanega"),
    "min": ("per minute", "por minuto"),
    "minute": ("per minute", "por minuto"),
    "minuto": ("per minute", "por minuto"),
    "second": ("per second", "por segundo"),
    "s²": ("per second squared", "por segundo al cuadrado"),
    "s2": ("per second squared", "por segundo al cuadrado"),
    "L": ("per liter", "por litro"),
    "l": ("per liter", "por litro"),
    "GB": ("per gigabyte", "por gigabyte"),
    "m³": ("per cubic meter", "por metro cúbico"),
    "m3": ("per cubic meter", "por metro cúbico"),
    "sq ft": ("per square foot", "por pie cuadrado"),
    "onza": ("per ounce", "por onza"),
    "tonelada": ("per tonne", "por tonelada"),
    "noche": ("per night", "por noche"),
    "kilo": ("per kilogram", "por kilo"),
    "acción": ("per share", "por acción"),
    "semana": ("per week", "por semana"),
    "hora": ("per hour", "por hora"),
    "día": ("per day", "al día"),
    "mes": ("per month", "al mes"),
    "año": ("per year", "al año"),
    "persona": ("per person", "por persona"),
    "barril": ("per barrel", "por barril"),
    "litro": ("per liter", "por litro"),
}
