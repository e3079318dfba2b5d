from duetime.recurrence.spec import Definition


def describe(definition: Definition) -> str:
    return ""
